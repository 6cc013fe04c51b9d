//! End-to-end tests: they drive the built programs.
