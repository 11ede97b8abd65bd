//! Links as every application on the unikernel does.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        println!("cargo::rustc-link-arg-bins=-Tunikernel.x");
        println!("cargo::rustc-link-arg-bins=--no-pie");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
