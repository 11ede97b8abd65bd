//! A driver whose HCAs are boot options (UEFI 2.11, sections 11.1 and 13.1): it binds them by `EFI_DRIVER_BINDING_PROTOCOL`
//! and gives each a child with a device path and `EFI_LOAD_FILE_PROTOCOL`. `LoadFile` starts the image itself, as iPXE does:
//! the boot manager would give it no command line and no initial RAM disk.

use crate::boot_image::BootImage;
use crate::device::Bound;
use crate::error::{Error, Result, check};
use crate::firmware::{Firmware, call};
use core::cell::Cell;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::ptr::{NonNull, null_mut};
use r_efi::efi::{Boolean, Guid, Handle, NATIVE_INTERFACE, OPEN_PROTOCOL_GET_PROTOCOL, Status, SystemTable};
use r_efi::protocols::{device_path, driver_binding, load_file};

/// Version of the driver, of those for drivers of devices (UEFI 2.11, section 11.1).
const VERSION: u32 = 0x10;
/// Longest device path, in bytes.
const MAX_PATH: usize = 1024;
/// A file path of a device path, and its end (sections 10.3.5.4, 10.3.1).
const MEDIA_FILE_PATH: [u8; 2] = [4, 4];
const END: [u8; 4] = [0x7f, 0xff, 4, 0];
const NODE_HEADER: usize = 4;

/// Source of a driver's boot images.
pub trait BootOption {
    /// Text of the option in the firmware's menu, in ASCII.
    const TEXT: &'static str;

    /// Returns the image to boot. The call runs on the firmware's stack and at the firmware's task priority, with the function switched
    /// off.
    ///
    /// # Errors
    /// A status that sends the firmware to the next boot option.
    fn load(firmware: Firmware, card: &Bound) -> core::result::Result<BootImage, Status>;

    /// Is called if the image cannot be started, and after it has returned. The firmware goes on with the next boot option.
    fn returned(outcome: Result<()>);
}

/// The driver, in the firmware's pool.
#[repr(C)]
struct Driver<O> {
    protocol: driver_binding::Protocol,
    firmware: Firmware,
    option: PhantomData<O>,
}

/// Device path of a boot option.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    bytes: [u8; MAX_PATH],
}

impl Path {
    /// The path `parent`, and a file path node with this text. `None` if it is too long or malformed.
    fn below(parent: NonNull<u8>, text: &str) -> Option<Self> {
        // SAFETY: firmware ends the path with an end node, and nodes before it are read as a whole.
        let at = |offset: usize| unsafe { parent.add(offset).read() };
        let mut path = Self { bytes: [0; MAX_PATH] };
        let mut len = 0;
        while at(len) & END[0] != END[0] {
            let node = usize::from(u16::from_le_bytes([at(len + 2), at(len + 3)]));
            let place = path.bytes.get_mut(len..len.checked_add(node)?).filter(|_| node >= NODE_HEADER)?;
            place.iter_mut().enumerate().for_each(|(index, byte)| *byte = at(len + index));
            len += node;
        }
        let node = NODE_HEADER + 2 * (text.len() + 1);
        let [low, high] = u16::try_from(node).ok()?.to_le_bytes();
        let header = [MEDIA_FILE_PATH[0], MEDIA_FILE_PATH[1], low, high];
        let units = text.bytes().chain([0]).flat_map(|byte| [byte, 0]);
        let bytes = header.into_iter().chain(units).chain(END);
        let place = path.bytes.get_mut(len..len + node + END.len())?;
        place.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        Some(path)
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut device_path::Protocol {
        self.bytes.as_mut_ptr().cast()
    }
}

/// A boot option: a child controller of an HCA.
#[repr(C)]
struct Child<O> {
    protocol: load_file::Protocol,
    firmware: Firmware,
    card: Bound,
    path: Path,
    busy: Cell<bool>,
    option: PhantomData<O>,
}

/// Makes the program a driver of all HCAs: the firmware keeps it, and calls it when it connects HCAs.
///
/// The program must be linked as a driver of boot services, so that the firmware keeps it. The driver stays until the operating system starts.
/// The returned status is that of the program's entry.
///
/// # Safety
/// As [`Firmware::new`]; after `ExitBootServices` the firmware calls no driver.
pub unsafe fn install<O: BootOption>(image: Handle, table: *mut SystemTable) -> Status {
    // SAFETY: the caller's promise.
    let Some(firmware) = (unsafe { Firmware::new(image, table) }) else { return Status::UNSUPPORTED };
    let protocol = driver_binding::Protocol {
        supported: supported::<O>,
        start: start::<O>,
        stop: stop::<O>,
        version: VERSION,
        image_handle: image,
        driver_binding_handle: image,
    };
    let installed =
        firmware.pool(Driver::<O> { protocol, firmware, option: PhantomData }).and_then(|driver| {
            let installed =
                add_interface(firmware, Some(image), driver_binding::PROTOCOL_GUID, driver.cast());
            installed.map(drop).inspect_err(|_| firmware.free_pool(driver.cast()))
        });
    installed.map_or_else(status, |()| Status::SUCCESS)
}

fn status(error: Error) -> Status {
    match error {
        Error::Call(_, status) => status,
        Error::InUse => Status::ACCESS_DENIED,
        Error::NotAnHca { .. } => Status::UNSUPPORTED,
        Error::NoFirmware | Error::NoBar | Error::SwitchedOff(_) | Error::Mapping => Status::DEVICE_ERROR,
    }
}

/// Installs a protocol on a handle, or on a new one. Returns the handle.
pub(crate) fn add_interface(
    firmware: Firmware,
    handle: Option<Handle>,
    mut guid: Guid,
    protocol: NonNull<c_void>,
) -> Result<Handle> {
    let mut handle = handle.unwrap_or(null_mut());
    let status = call!(
        firmware,
        install_protocol_interface(&raw mut handle, &raw mut guid, NATIVE_INTERFACE, protocol.as_ptr())
    );
    check("InstallProtocolInterface", status).map(|()| handle)
}

pub(crate) fn remove_interface(
    firmware: Firmware,
    handle: Handle,
    mut guid: Guid,
    protocol: NonNull<c_void>,
) -> Result<()> {
    let status = call!(firmware, uninstall_protocol_interface(handle, &raw mut guid, protocol.as_ptr()));
    check("UninstallProtocolInterface", status)
}

/// Returns a protocol of a handle.
pub(crate) fn interface<T>(firmware: Firmware, handle: Handle, mut guid: Guid) -> Result<NonNull<T>> {
    let mut protocol: *mut c_void = null_mut();
    let status = call!(
        firmware,
        open_protocol(
            handle,
            &raw mut guid,
            &raw mut protocol,
            firmware.image(),
            null_mut(),
            OPEN_PROTOCOL_GET_PROTOCOL
        )
    );
    check("OpenProtocol", status)?;
    NonNull::new(protocol.cast()).ok_or(Error::Call("OpenProtocol", Status::NOT_FOUND))
}

type Binding = *mut driver_binding::Protocol;

unsafe extern "efiapi" fn supported<O: BootOption>(
    this: Binding,
    controller: Handle,
    _: *mut device_path::Protocol,
) -> Status {
    // SAFETY: the firmware passes the installed protocol, the first field of a `Driver`.
    let firmware = unsafe { (*this.cast::<Driver<O>>()).firmware };
    if Bound::is_supported(firmware, controller) { Status::SUCCESS } else { Status::UNSUPPORTED }
}

unsafe extern "efiapi" fn start<O: BootOption>(
    this: Binding,
    controller: Handle,
    _: *mut device_path::Protocol,
) -> Status {
    // SAFETY: as in `supported`.
    let firmware = unsafe { (*this.cast::<Driver<O>>()).firmware };
    let started = Bound::bind(firmware, controller)
        .and_then(|card| add_child::<O>(firmware, controller, card).inspect_err(|_| card.release()));
    started.map_or_else(status, |()| Status::SUCCESS)
}

/// Makes the boot option of a function.
fn add_child<O: BootOption>(firmware: Firmware, controller: Handle, card: Bound) -> Result<()> {
    let parent = interface::<u8>(firmware, controller, device_path::PROTOCOL_GUID)?;
    let path = Path::below(parent, O::TEXT).ok_or(Error::Call("DevicePath", Status::BAD_BUFFER_SIZE))?;
    let child = firmware.pool(Child::<O> {
        protocol: load_file::Protocol { load_file: load::<O> },
        firmware,
        card,
        path,
        busy: Cell::new(false),
        option: PhantomData,
    })?;
    let path = Child::path(child);
    let installed = add_interface(firmware, None, device_path::PROTOCOL_GUID, path).and_then(|handle| {
        let completed = add_interface(firmware, Some(handle), load_file::PROTOCOL_GUID, child.cast())
            .and_then(|_| {
                card.adopt(handle).inspect_err(|_| {
                    let _ = remove_interface(firmware, handle, load_file::PROTOCOL_GUID, child.cast());
                })
            });
        completed.inspect_err(|_| {
            let _ = remove_interface(firmware, handle, device_path::PROTOCOL_GUID, path);
        })
    });
    installed.inspect_err(|_| firmware.free_pool(child.cast()))
}

impl<O> Child<O> {
    /// Returns the device path, which does not move.
    fn path(child: NonNull<Self>) -> NonNull<c_void> {
        // SAFETY: a field of the child in the pool.
        unsafe { NonNull::new_unchecked(&raw mut (*child.as_ptr()).path.bytes).cast() }
    }
}

unsafe extern "efiapi" fn stop<O: BootOption>(
    this: Binding,
    controller: Handle,
    count: usize,
    children: *mut Handle,
) -> Status {
    // SAFETY: as in `supported`.
    let firmware = unsafe { (*this.cast::<Driver<O>>()).firmware };
    if count == 0 {
        Bound::release_handle(firmware, controller);
        return Status::SUCCESS;
    }
    let mut result = Status::SUCCESS;
    for index in 0..count {
        // SAFETY: the firmware passes as many handles.
        let handle = unsafe { children.add(index).read() };
        if let Err(error) = remove_child::<O>(firmware, handle) {
            result = status(error);
        }
    }
    result
}

/// Removes a boot option.
fn remove_child<O: BootOption>(firmware: Firmware, handle: Handle) -> Result<()> {
    let child = interface::<Child<O>>(firmware, handle, load_file::PROTOCOL_GUID)?;
    // SAFETY: children of this driver have its protocol.
    let (card, busy) = unsafe { ((*child.as_ptr()).card, (*child.as_ptr()).busy.get()) };
    if busy {
        return Err(Error::Call("Stop", Status::DEVICE_ERROR));
    }
    card.orphan(handle);
    let removed = remove_interface(firmware, handle, load_file::PROTOCOL_GUID, child.cast()).and_then(|()| {
        remove_interface(firmware, handle, device_path::PROTOCOL_GUID, Child::path(child)).inspect_err(|_| {
            let _ = add_interface(firmware, Some(handle), load_file::PROTOCOL_GUID, child.cast());
        })
    });
    if removed.is_err() {
        // Another program holds it.
        let _ = card.adopt(handle);
        return removed;
    }
    firmware.free_pool(child.cast());
    Ok(())
}

unsafe extern "efiapi" fn load<O: BootOption>(
    this: *mut load_file::Protocol,
    path: *mut device_path::Protocol,
    boot_policy: Boolean,
    size: *mut usize,
    _: *mut c_void,
) -> Status {
    if this.is_null() || path.is_null() || size.is_null() {
        return Status::INVALID_PARAMETER;
    }
    if !bool::from(boot_policy) {
        return Status::UNSUPPORTED;
    }
    // SAFETY: the firmware passes the installed protocol, the first field of a `Child`.
    let child = unsafe { &*this.cast::<Child<O>>() };
    if child.busy.replace(true) {
        return Status::NOT_READY;
    }
    let (firmware, path) = (child.firmware, child.path);
    let image = O::load(firmware, &child.card);
    child.busy.set(false);
    match image {
        Ok(image) => {
            // The image may take the card, which removes the child.
            O::returned(image.start(firmware, path));
            // EFI_BUFFER_TOO_SMALL would start the image again.
            Status::ABORTED
        }
        Err(status) => status,
    }
}
