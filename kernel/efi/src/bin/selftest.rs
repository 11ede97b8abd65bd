//! `selftest.efi`: tests all ConnectX cards of a machine that has no operating system. Its report is in the file `selftest.txt` beside it.
#![cfg_attr(target_os = "uefi", no_std, no_main)]

/// The firmware's entry.
///
/// # Safety
/// Only firmware calls it.
#[cfg(target_os = "uefi")]
#[unsafe(no_mangle)]
pub unsafe extern "efiapi" fn efi_main(
    image: r_efi::efi::Handle,
    table: *mut r_efi::efi::SystemTable,
) -> r_efi::efi::Status {
    // SAFETY: the arguments of the entry.
    unsafe { efi::entry::Program::run(image, table, Some("selftest.txt"), efi::selftest::run) }
}

#[cfg(target_os = "uefi")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    efi::entry::abort(format_args!("{info}"))
}

#[cfg(not(target_os = "uefi"))]
fn main() {
    eprintln!("this is a UEFI program: cargo build --release -p efi --target x86_64-unknown-uefi");
}
