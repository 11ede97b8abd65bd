//! A driver whose functions are boot options.

use crate::fake::{Quirks, clock, firmware_and_table, function, image, with};
use crate::{assert_empty, handles};
use hca_model::Profile;
use platform_uefi::{BootImage, BootOption, Bound, Firmware, install};
use r_efi::efi::{Boolean, Handle, OPEN_PROTOCOL_BY_DRIVER, Status};
use r_efi::protocols::{device_path, driver_binding, load_file};
use std::cell::Cell;
use std::ptr::null_mut;

const IMAGE: &[u8] = b"an image of some bytes";

thread_local! {
    static LOADS: Cell<u32> = const { Cell::new(0) };
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

struct Option_;

impl BootOption for Option_ {
    const TEXT: &'static str = "Test";

    fn load(firmware: Firmware, card: &Bound) -> Result<BootImage, Status> {
        LOADS.set(LOADS.get() + 1);
        if FAILS.get() {
            return Err(Status::NO_RESPONSE);
        }
        let device = card.open(clock(firmware)).map_err(|_| Status::DEVICE_ERROR)?;
        assert_eq!(with(|state| state.command()) & 4, 4, "the function is on");
        device.close();
        let mut memory = firmware.memory(IMAGE.len()).map_err(|_| Status::OUT_OF_RESOURCES)?;
        // SAFETY: no region is made of it.
        let bytes = unsafe { memory.bytes() };
        bytes[..IMAGE.len()].copy_from_slice(IMAGE);
        BootImage::new(memory, IMAGE.len()).ok_or(Status::LOAD_ERROR)
    }
}

/// The installed driver.
fn driver() -> *mut driver_binding::Protocol {
    let (_, table) = firmware_and_table(Profile::node(0), Quirks::default());
    LOADS.set(0);
    FAILS.set(false);
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

/// Calls `LoadFile`. Returns the status and the size.
fn load_file(child: Handle, policy: Boolean, buffer: Option<&mut [u8]>) -> (Status, usize) {
    let protocol = handles::find(child, &load_file::PROTOCOL_GUID).expect("installed");
    let protocol = protocol.cast::<load_file::Protocol>();
    let mut end = device_path::Protocol { r#type: 0x7f, sub_type: 0xff, length: [4, 0] };
    let mut size = buffer.as_ref().map_or(0, |buffer| buffer.len());
    let buffer = buffer.map_or(null_mut(), |buffer| buffer.as_mut_ptr().cast());
    // SAFETY: the installed protocol, local variables, and a buffer of as many bytes.
    let status = unsafe { ((*protocol).load_file)(protocol, &raw mut end, policy, &raw mut size, buffer) };
    (status, size)
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

#[test]
fn load_file_fetches_the_image_once_and_hands_it_over_once() {
    let driver = driver();
    assert_eq!(drive!(driver, start, function(), null_mut()), Status::SUCCESS);
    let child = only_child();
    assert_eq!(load_file(child, Boolean::FALSE, None).0, Status::UNSUPPORTED);
    // As EDK2 does: the size twice, then the image.
    for _ in 0..2 {
        assert_eq!(load_file(child, Boolean::TRUE, None), (Status::BUFFER_TOO_SMALL, IMAGE.len()));
    }
    let mut short = [0; 5];
    assert_eq!(load_file(child, Boolean::TRUE, Some(&mut short)), (Status::BUFFER_TOO_SMALL, IMAGE.len()));
    let mut buffer = [0; 100];
    assert_eq!(load_file(child, Boolean::TRUE, Some(&mut buffer)), (Status::SUCCESS, IMAGE.len()));
    assert_eq!((&buffer[..IMAGE.len()], buffer[IMAGE.len()]), (IMAGE, 0));
    assert_eq!(LOADS.get(), 1);
    assert_eq!(with(|state| state.command()) & 4, 0, "the function is off");
    // The next boot fetches it again.
    assert_eq!(load_file(child, Boolean::TRUE, None).0, Status::BUFFER_TOO_SMALL);
    assert_eq!(LOADS.get(), 2);
    // An image that was not handed over is freed with the child.
    let mut children = [child];
    assert_eq!(drive!(driver, stop, function(), 1, children.as_mut_ptr()), Status::SUCCESS);
    assert_eq!(drive!(driver, stop, function(), 0, null_mut()), Status::SUCCESS);
    with(|state| assert_eq!(state.blocks.len(), 1));
}

#[test]
fn failures_of_the_image_reach_the_firmware() {
    let driver = driver();
    assert_eq!(drive!(driver, start, function(), null_mut()), Status::SUCCESS);
    FAILS.set(true);
    assert_eq!(load_file(only_child(), Boolean::TRUE, None).0, Status::NO_RESPONSE);
    FAILS.set(false);
    assert_eq!(load_file(only_child(), Boolean::TRUE, None).0, Status::BUFFER_TOO_SMALL);
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
