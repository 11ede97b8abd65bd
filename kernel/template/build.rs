//! The image's layout comes with the unikernel.

fn main() {
    println!("cargo::rustc-link-arg-bins=-Tunikernel.x");
    println!("cargo::rustc-link-arg-bins=--no-pie");
}
