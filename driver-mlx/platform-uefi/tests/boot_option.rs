//! A driver whose functions are boot options.

use crate::fake::{Quirks, clock, firmware_and_table, function, image, with};
use crate::images::{self, Program};
use crate::{assert_empty, handles};
use hca_model::Profile;
use platform_uefi::{BootFile, BootImage, BootOption, Bound, Error, Firmware, install};
use r_efi::efi::{Boolean, Handle, OPEN_PROTOCOL_BY_DRIVER, Status};
use r_efi::protocols::{device_path, driver_binding, load_file, load_file2};
use std::cell::Cell;
use std::ptr::null_mut;

const IMAGE: &[u8] = b"an image of some bytes";
const INITRD: &[u8] = b"070701";
const ARGUMENTS: &str = "console=ttyS0 r\u{f6}\u{1f600}";

thread_local! {
    static FAILS: Cell<bool> = const { Cell::new(false) };
    /// Adds arguments and initial RAM disk to the program.
    static KERNEL: Cell<bool> = const { Cell::new(false) };
    static OUTCOME: Cell<Option<Result<(), Error>>> = const { Cell::new(None) };
}

fn file(firmware: Firmware, bytes: &[u8]) -> BootFile {
    let mut file = BootFile::new(firmware, bytes.len()).expect("memory");
    file.bytes().copy_from_slice(bytes);
    file
}

struct Option_;

impl BootOption for Option_ {
    const TEXT: &'static str = "Test";

    fn load(firmware: Firmware, card: &Bound) -> Result<BootImage, Status> {
        if FAILS.get() {
            return Err(Status::NO_RESPONSE);
        }
        let device = card.open(clock(firmware)).map_err(|_| Status::DEVICE_ERROR)?;
        assert_eq!(with(|state| state.command()) & 4, 4, "the function is on");
        device.close();
        let arguments = BootFile::command_line(firmware, ARGUMENTS).expect("memory");
        let (arguments, initrd) = (Some(arguments), Some(file(firmware, INITRD)));
        let kernel = KERNEL.get();
        Ok(BootImage::new(file(firmware, IMAGE), arguments.filter(|_| kernel), initrd.filter(|_| kernel)))
    }

    fn returned(outcome: Result<(), Error>) {
        OUTCOME.set(Some(outcome));
    }
}

/// The installed driver.
fn driver() -> *mut driver_binding::Protocol {
    let (_, table) = firmware_and_table(Profile::node(0), Quirks::default());
    FAILS.set(false);
    KERNEL.set(false);
    images::with(|program| *program = Program::default());
    // SAFETY: the fake's table, on one thread.
    assert_eq!(unsafe { install::<Option_>(image(), table) }, Status::SUCCESS);
    handles::find(image(), &driver_binding::PROTOCOL_GUID).expect("installed").cast()
}

/// Calls a function of the driver for a controller.
macro_rules! drive {
    ($driver:expr, $call:ident, $($argument:expr),*) => {
        // SAFETY: the installed protocol.
        unsafe { ((*$driver).$call)($driver, $($argument),*) }
    };
}

/// Calls `LoadFile` as EDK2 does, for the size.
fn load_file(child: Handle, policy: Boolean) -> Status {
    let protocol = handles::find(child, &load_file::PROTOCOL_GUID).expect("installed");
    let protocol = protocol.cast::<load_file::Protocol>();
    let mut end = device_path::Protocol { r#type: 0x7f, sub_type: 0xff, length: [4, 0] };
    let mut size = 0;
    // SAFETY: the installed protocol and local variables.
    unsafe { ((*protocol).load_file)(protocol, &raw mut end, policy, &raw mut size, null_mut()) }
}

fn only_child() -> Handle {
    let children = handles::with_protocol(&load_file::PROTOCOL_GUID);
    assert_eq!(children.len(), 1);
    children[0]
}

#[test]
fn driver_makes_a_child_with_a_path_and_removes_it() {
    let driver = driver();
    let before = with(|state| (state.command(), state.attributes));
    assert_eq!(drive!(driver, supported, function(), null_mut()), Status::SUCCESS);
    with(|state| assert!(state.opened.is_empty() && (state.command(), state.attributes) == before));
    assert_eq!(drive!(driver, start, function(), null_mut()), Status::SUCCESS);
    with(|state| {
        assert_eq!(state.opened, [OPEN_PROTOCOL_BY_DRIVER]);
        assert_eq!((state.command(), state.attributes), before, "switched on by LoadFile only");
    });
    assert_ne!(drive!(driver, supported, function(), null_mut()), Status::SUCCESS, "it has a driver");
    let child = only_child();
    assert_eq!(handles::children(), [child as usize]);
    let path = handles::find(child, &device_path::PROTOCOL_GUID).expect("installed").cast::<u8>();
    // The function's node, a file path, the end.
    let expected: &[u8] =
        &[1, 1, 6, 0, 0, 0x10, 4, 4, 14, 0, b'T', 0, b'e', 0, b's', 0, b't', 0, 0, 0, 0x7f, 0xff, 4, 0];
    // SAFETY: longer than that.
    assert_eq!(unsafe { std::slice::from_raw_parts(path, expected.len()) }, expected);
    let mut children = [child];
    assert_eq!(drive!(driver, stop, function(), 1, children.as_mut_ptr()), Status::SUCCESS);
    assert_eq!(drive!(driver, stop, function(), 0, null_mut()), Status::SUCCESS);
    assert!(
        handles::children().is_empty() && handles::with_protocol(&device_path::PROTOCOL_GUID) == [function()]
    );
    with(|state| {
        assert!(state.opened.is_empty());
        // The driver's own protocol stays.
        assert_eq!(state.blocks.len(), 1);
    });
}

/// A driver that has started.
fn started() -> (*mut driver_binding::Protocol, Handle) {
    let driver = driver();
    assert_eq!(drive!(driver, start, function(), null_mut()), Status::SUCCESS);
    (driver, only_child())
}

/// Boots an image. Returns its outcome; no memory of it is left.
fn boot(child: Handle) -> Result<(), Error> {
    let blocks = with(|state| state.blocks.len());
    assert_eq!(load_file(child, Boolean::TRUE), Status::ABORTED, "the next boot option");
    assert_eq!(with(|state| state.command()) & 4, 0, "the function is off");
    assert_eq!(with(|state| state.blocks.len()), blocks);
    assert!(images::with(|program| !program.loaded));
    OUTCOME.take().expect("shown")
}

#[test]
fn load_file_starts_the_image_again_and_again() {
    let (driver, child) = started();
    assert_eq!(load_file(child, Boolean::FALSE), Status::UNSUPPORTED);
    for starts in 1..=2 {
        assert_eq!(boot(child), Ok(()));
        let program = images::with(|program| program.clone());
        assert_eq!((&program.bytes[..], program.options, program.initrd), (IMAGE, None, None));
        assert_eq!((program.starts, program.path.len()), (starts, 24));
    }
    let mut children = [child];
    assert_eq!(drive!(driver, stop, function(), 1, children.as_mut_ptr()), Status::SUCCESS);
    assert_eq!(drive!(driver, stop, function(), 0, null_mut()), Status::SUCCESS);
    with(|state| assert_eq!(state.blocks.len(), 1));
}

#[test]
fn kernels_find_their_command_line_and_initial_ram_disk_and_leave_none() {
    let (_, child) = started();
    KERNEL.set(true);
    assert_eq!(boot(child), Ok(()));
    let program = images::with(|program| program.clone());
    assert_eq!(program.options, Some(format!("{ARGUMENTS}\0")));
    assert_eq!(program.initrd.as_deref(), Some(INITRD));
    // The next boot option is no kernel of this server.
    assert!(handles::with_protocol(&load_file2::PROTOCOL_GUID).is_empty());
    assert_eq!(handles::with_protocol(&device_path::PROTOCOL_GUID).len(), 2);
}

#[test]
fn images_that_firmware_refuses_are_not_started() {
    let (_, child) = started();
    KERNEL.set(true);
    for status in [Status::ACCESS_DENIED, Status::SECURITY_VIOLATION] {
        images::with(|program| program.load = Some(status));
        assert_eq!(boot(child), Err(Error::Call("LoadImage", status)));
    }
    images::with(|program| {
        (program.load, program.start) = (None, Some(Status::BUFFER_TOO_SMALL));
        assert_eq!(program.starts, 0);
    });
    assert_eq!(boot(child), Err(Error::Call("StartImage", Status::BUFFER_TOO_SMALL)));
}

#[test]
fn failures_of_the_image_reach_the_firmware() {
    let (_, child) = started();
    FAILS.set(true);
    assert_eq!(load_file(child, Boolean::TRUE), Status::NO_RESPONSE);
    FAILS.set(false);
    assert_eq!(boot(child), Ok(()));
}

#[test]
fn functions_that_are_taken_have_no_boot_option() {
    let driver = driver();
    with(|state| state.quirks.kept = true);
    assert_eq!(drive!(driver, supported, function(), null_mut()), Status::UNSUPPORTED);
    assert_eq!(drive!(driver, start, function(), null_mut()), Status::ACCESS_DENIED);
    assert!(handles::with_protocol(&load_file::PROTOCOL_GUID).is_empty());
    with(|state| state.quirks.kept = false);
    handles::clear();
    // A function without a device path.
    assert_eq!(drive!(driver, start, function(), null_mut()), Status::UNSUPPORTED);
    with(|state| {
        assert!(state.opened.is_empty());
        state.blocks.clear();
    });
    assert_empty();
}
