//! The Weir gateway as a library.
