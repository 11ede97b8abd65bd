//! Hands the linker the image's layout when the target is the bare machine.

fn main() {
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rerun-if-changed=build.rs");
    let bare_metal = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none");
    if let (true, Ok(folder)) = (bare_metal, std::env::var("CARGO_MANIFEST_DIR")) {
        println!("cargo:rustc-link-arg-bins=-T{folder}/link.ld");
        // Written by defmt's own build script; puts the log strings at address 1 upwards, so that a
        // symbol's address is its index.
        println!("cargo:rustc-link-arg-bins=-Tdefmt.x");
    }
}
