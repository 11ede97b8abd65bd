//! Puts the image's layout where the linker of whoever uses this crate finds it: applications say `-Tunikernel.x`.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=unikernel.x");
    println!("cargo::rerun-if-changed=build.rs");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::copy("unikernel.x", folder.join("unikernel.x")).expect("the link script is copied");
    println!("cargo::rustc-link-search={}", folder.display());
}
