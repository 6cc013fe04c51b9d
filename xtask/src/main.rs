//! The toolbox of the project.

fn main() {}
