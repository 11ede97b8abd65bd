//! `rdmaboot.efi`: a UEFI driver that makes each ConnectX function a boot option. A server has the image.
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
    unsafe { efi::entry::drive::<efi::boot::RdmaBoot>(image, table) }
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
