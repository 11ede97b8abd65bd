//! Links the driver as one: the firmware keeps drivers of boot services, and frees applications that have returned.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "uefi") {
        println!("cargo::rustc-link-arg-bin=rdmaboot=/SUBSYSTEM:EFI_BOOT_SERVICE_DRIVER");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
