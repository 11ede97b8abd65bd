//! A text file beside the program.

use crate::path::{self, Bytes};
use core::ffi::c_void;
use core::fmt;
use core::ptr::{NonNull, null_mut};
use r_efi::efi::{Guid, Handle, OPEN_PROTOCOL_GET_PROTOCOL, Status, SystemTable};
use r_efi::protocols::{device_path, file, loaded_image, simple_file_system};

/// A file that is written, line by line. Dropping it closes it.
#[derive(Debug)]
pub struct File(NonNull<file::Protocol>);

impl File {
    /// Creates the file `name` in the program's directory. One that exists is replaced.
    ///
    /// `None` if the program was not loaded from a file system, or the file system cannot be written.
    ///
    /// # Safety
    /// 1. `image` and `table` are the arguments of the program's entry.
    /// 2. The file is not used after `ExitBootServices`.
    #[must_use]
    pub unsafe fn beside_program(image: Handle, table: *mut SystemTable, name: &str) -> Option<Self> {
        let find = |handle: Handle, mut guid: Guid| {
            let mut protocol: *mut c_void = null_mut();
            // SAFETY: the caller's first promise; the arguments are values and local variables.
            let status = unsafe {
                let services = (*table).boot_services;
                ((*services).open_protocol)(
                    handle,
                    &raw mut guid,
                    &raw mut protocol,
                    image,
                    null_mut(),
                    OPEN_PROTOCOL_GET_PROTOCOL,
                )
            };
            (status == Status::SUCCESS).then_some(protocol).and_then(NonNull::new)
        };
        let program = find(image, loaded_image::PROTOCOL_GUID)?.cast::<loaded_image::Protocol>();
        // SAFETY: the firmware's description of this program.
        let (device, path) = unsafe { ((*program.as_ptr()).device_handle, (*program.as_ptr()).file_path) };
        let mut path = path::beside(&DevicePath(NonNull::new(path)?), name)?;
        let volume = find(device, simple_file_system::PROTOCOL_GUID)?.cast::<simple_file_system::Protocol>();
        let mut root: *mut file::Protocol = null_mut();
        // SAFETY: the firmware's protocol and a local variable.
        let status = unsafe { ((*volume.as_ptr()).open_volume)(volume.as_ptr(), &raw mut root) };
        let root = (status == Status::SUCCESS).then(|| NonNull::new(root).map(File)).flatten()?;
        let modes = file::MODE_READ | file::MODE_WRITE;
        if let Some(old) = root.open(&mut path, modes) {
            old.delete();
        }
        root.open(&mut path, modes | file::MODE_CREATE)
    }

    fn open(&self, path: &mut [u16], mode: u64) -> Option<Self> {
        let (directory, mut opened) = (self.0.as_ptr(), null_mut());
        // SAFETY: an open directory, a path with a zero at its end, and a local variable.
        let status = unsafe { ((*directory).open)(directory, &raw mut opened, path.as_mut_ptr(), mode, 0) };
        (status == Status::SUCCESS).then(|| NonNull::new(opened).map(Self)).flatten()
    }

    /// Deletes and closes it.
    fn delete(self) {
        let file = self.0.as_ptr();
        core::mem::forget(self);
        // SAFETY: an open file, which is not used again. Where it cannot be deleted, it is written
        // over.
        let _ = unsafe { ((*file).delete)(file) };
    }

    /// Writes what the firmware still keeps in memory. A machine that hangs later has this much of the file.
    pub fn flush(&mut self) {
        let file = self.0.as_ptr();
        // SAFETY: an open file.
        let _ = unsafe { ((*file).flush)(file) };
    }
}

impl fmt::Write for File {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let file = self.0.as_ptr();
        let mut len = text.len();
        // SAFETY: an open file, and as many bytes. Firmware does not change them.
        let status = unsafe { ((*file).write)(file, &raw mut len, text.as_ptr().cast_mut().cast()) };
        if status == Status::SUCCESS && len == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let file = self.0.as_ptr();
        // SAFETY: an open file, which is not used again.
        let _ = unsafe { ((*file).close)(file) };
    }
}

/// The firmware's path of a program.
struct DevicePath(NonNull<device_path::Protocol>);

impl Bytes for DevicePath {
    fn byte(&self, offset: usize) -> u8 {
        // SAFETY: firmware ends the path with an end node, beyond which `beside` does not read.
        unsafe { self.0.cast::<u8>().add(offset).read() }
    }
}
