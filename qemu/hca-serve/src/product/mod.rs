//! What makes the server a program to work with: output that never holds it up.

pub mod output;
