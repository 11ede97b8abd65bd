//! The firmware's programs: what it was asked to start, and what the program finds.

use crate::fake::image;
use crate::handles;
use r_efi::efi::{Boolean, Char16, Handle, Status};
use r_efi::protocols::{device_path, load_file2, loaded_image};
use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

const PROGRAM: Handle = 0x8000 as Handle;

/// A program, and how it ends.
#[derive(Clone, Default)]
pub struct Program {
    pub bytes: Vec<u8>,
    pub path: Vec<u8>,
    /// Its command line and its initial RAM disk, when it was started.
    pub options: Option<String>,
    pub initrd: Option<Vec<u8>>,
    pub starts: u32,
    /// Statuses of `LoadImage` and `StartImage`.
    pub load: Option<Status>,
    pub start: Option<Status>,
    /// Set between `LoadImage` and the program's end.
    pub loaded: bool,
}

thread_local! {
    static IMAGES: RefCell<Program> = RefCell::default();
}

/// Calls `work` with the program.
pub fn with<R>(work: impl FnOnce(&mut Program) -> R) -> R {
    IMAGES.with_borrow_mut(work)
}

pub unsafe extern "efiapi" fn load(
    policy: Boolean,
    parent: Handle,
    path: *mut device_path::Protocol,
    source: *mut c_void,
    size: usize,
    handle: *mut Handle,
) -> Status {
    assert!(bool::from(policy) && parent == image());
    let status = with(|program| program.load).unwrap_or(Status::SUCCESS);
    if status != Status::SUCCESS && status != Status::SECURITY_VIOLATION {
        return status;
    }
    let mut description: Box<MaybeUninit<loaded_image::Protocol>> = Box::new(MaybeUninit::zeroed());
    // SAFETY: the program has neither.
    unsafe {
        (&raw mut (*description.as_mut_ptr()).load_options).write(null_mut());
        (&raw mut (*description.as_mut_ptr()).load_options_size).write(0);
    }
    handles::add(PROGRAM, loaded_image::PROTOCOL_GUID, Box::leak(description).as_ptr().cast());
    with(|program| {
        assert!(!std::mem::replace(&mut program.loaded, true), "one at a time");
        // SAFETY: the caller's buffer, path and variable.
        unsafe {
            program.bytes = std::slice::from_raw_parts(source.cast::<u8>(), size).to_vec();
            program.path = path_bytes(path.cast());
            handle.write(PROGRAM);
        }
    });
    status
}

/// A device path up to its end.
unsafe fn path_bytes(path: *const u8) -> Vec<u8> {
    // SAFETY: the caller's path has an end.
    unsafe {
        let mut len = 0;
        while *path.add(len) != 0x7f {
            len += usize::from(*path.add(len + 2));
        }
        std::slice::from_raw_parts(path, len + 4).to_vec()
    }
}

pub unsafe extern "efiapi" fn unload(handle: Handle) -> Status {
    assert_eq!(handle, PROGRAM);
    with(|program| assert!(std::mem::replace(&mut program.loaded, false)));
    handles::remove(PROGRAM, &loaded_image::PROTOCOL_GUID);
    Status::SUCCESS
}

pub unsafe extern "efiapi" fn start(handle: Handle, _: *mut usize, _: *mut *mut Char16) -> Status {
    assert_eq!(handle, PROGRAM);
    let description = handles::find(handle, &loaded_image::PROTOCOL_GUID).expect("loaded");
    let description = description.cast::<loaded_image::Protocol>();
    // SAFETY: the description of `load`, and as many bytes of options.
    let options = unsafe {
        let (options, size) = ((*description).load_options, (*description).load_options_size);
        (!options.is_null()).then(|| std::slice::from_raw_parts(options.cast::<u16>(), size as usize / 2))
    };
    let options = options.map(|units| String::from_utf16(units).expect("text"));
    let initrd = load_initrd();
    let status = with(|program| {
        (program.options, program.initrd, program.loaded) = (options, initrd, false);
        program.starts += 1;
        program.start.unwrap_or(Status::SUCCESS)
    });
    handles::remove(PROGRAM, &loaded_image::PROTOCOL_GUID);
    status
}

/// Loads the initial RAM disk as Linux does.
fn load_initrd() -> Option<Vec<u8>> {
    let handle = handles::with_protocol(&load_file2::PROTOCOL_GUID).pop()?;
    let path = handles::find(handle, &device_path::PROTOCOL_GUID).expect("a path").cast::<u8>();
    // Linux compares it: `struct linux_efi_initrd` in its drivers/firmware/efi/libstub/efi-stub-helper.c.
    let expected = [
        &[4, 3, 20, 0, 0x27, 0xe4, 0x68, 0x55, 0xfc, 0x68, 0x3d, 0x4f][..],
        &[0xac, 0x74, 0xca, 0x55, 0x52, 0x31, 0xcc, 0x68, 0x7f, 0xff, 4, 0],
    ];
    // SAFETY: the installed path.
    assert_eq!(unsafe { path_bytes(path) }, expected.concat());
    let protocol = handles::find(handle, &load_file2::PROTOCOL_GUID)?.cast::<load_file2::Protocol>();
    let call = |policy, buffer: &mut [u8]| {
        let mut end = device_path::Protocol { r#type: 0x7f, sub_type: 0xff, length: [4, 0] };
        let (mut size, empty) = (buffer.len(), buffer.is_empty());
        let memory = if empty { null_mut() } else { buffer.as_mut_ptr().cast() };
        // SAFETY: the installed protocol, local variables, and a buffer of as many bytes.
        let status =
            unsafe { ((*protocol).load_file)(protocol, &raw mut end, policy, &raw mut size, memory) };
        (status, size)
    };
    assert_eq!(call(Boolean::TRUE, &mut []).0, Status::UNSUPPORTED);
    let (status, size) = call(Boolean::FALSE, &mut []);
    assert_eq!(status, Status::BUFFER_TOO_SMALL);
    assert_eq!(call(Boolean::FALSE, &mut vec![0; size - 1]), (Status::BUFFER_TOO_SMALL, size));
    let mut bytes = vec![0; size];
    assert_eq!(call(Boolean::FALSE, &mut bytes), (Status::SUCCESS, size));
    Some(bytes)
}
