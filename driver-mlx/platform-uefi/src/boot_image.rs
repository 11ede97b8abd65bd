//! A program in memory, and what it gets when it starts: its command line in `LoadOptions` (UEFI 2.11, section 9.1.1), and an
//! initial RAM disk as Linux's EFI stub looks for it, by `EFI_LOAD_FILE2_PROTOCOL` on a vendor's media path
//! (Linux, `include/linux/efi.h`: `LINUX_EFI_INITRD_MEDIA_GUID`).

use crate::boot_option::{Path, add_interface, interface, remove_interface};
use crate::error::{Error, Result, check};
use crate::firmware::{Firmware, call};
use crate::memory::HostMemory;
use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null_mut};
use r_efi::efi::{Boolean, Handle, Status};
use r_efi::protocols::{device_path, load_file, load_file2, loaded_image};

/// Device path of the initial RAM disk: a vendor's node of media (type 4, sub-type 3) with the GUID, and the end.
static INITRD_PATH: [u8; 24] = [
    4, 3, 20, 0, 0x27, 0xe4, 0x68, 0x55, 0xfc, 0x68, 0x3d, 0x4f, 0xac, 0x74, 0xca, 0x55, 0x52, 0x31, 0xcc,
    0x68, 0x7f, 0xff, 4, 0,
];

/// Memory with the bytes of a file. Dropping it frees it.
#[derive(Debug)]
pub struct BootFile {
    memory: ManuallyDrop<HostMemory>,
    len: usize,
}

impl BootFile {
    /// Allocates a file of `len` zeros.
    ///
    /// # Errors
    /// [`Error::Call`]: too little memory, or an empty file.
    pub fn new(firmware: Firmware, len: usize) -> Result<Self> {
        firmware.memory(len).map(|memory| Self { memory: ManuallyDrop::new(memory), len })
    }

    /// A command line, in UTF-16 with a zero at its end.
    ///
    /// # Errors
    /// As [`BootFile::new`].
    pub fn command_line(firmware: Firmware, text: &str) -> Result<Self> {
        let units = || text.encode_utf16().chain([0]);
        let mut file = Self::new(firmware, 2 * units().count())?;
        let (places, _) = file.bytes().as_chunks_mut();
        places.iter_mut().zip(units()).for_each(|(place, unit)| *place = unit.to_ne_bytes());
        Ok(file)
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: no region is made of it.
        let bytes = unsafe { self.memory.bytes() };
        bytes.get_mut(..self.len).unwrap_or_default()
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn start(&self) -> NonNull<c_void> {
        self.memory.start().cast()
    }
}

impl Drop for BootFile {
    fn drop(&mut self) {
        // SAFETY: the memory is taken once and has no region.
        unsafe { ManuallyDrop::take(&mut self.memory).free() };
    }
}

/// A program to start, with what it gets.
#[derive(Debug)]
pub struct BootImage {
    program: BootFile,
    arguments: Option<BootFile>,
    initrd: Option<BootFile>,
}

impl BootImage {
    /// The PE image `program`, its [`BootFile::command_line`], and the initial RAM disk of a Linux kernel.
    #[must_use]
    pub fn new(program: BootFile, arguments: Option<BootFile>, initrd: Option<BootFile>) -> Self {
        Self { program, arguments, initrd }
    }

    /// Starts the program, as if it came from `path`. Returns when it has ended; an operating system does not.
    pub(crate) fn start(self, firmware: Firmware, mut path: Path) -> Result<()> {
        let Self { program, arguments, initrd } = self;
        let handle = load(firmware, &program, &mut path)?;
        // The firmware has copied its sections.
        drop(program);
        let prepared = arguments
            .as_ref()
            .map_or(Ok(()), |arguments| set_options(firmware, handle, arguments))
            .and_then(|()| initrd.map(|file| Offer::new(firmware, file)).transpose());
        let offer = match prepared {
            Ok(offer) => offer,
            Err(error) => {
                unload(firmware, handle);
                return Err(error);
            }
        };
        let status = call!(firmware, start_image(handle, null_mut(), null_mut()));
        if let Some(offer) = offer {
            offer.withdraw();
        }
        check("StartImage", status)
    }
}

fn load(firmware: Firmware, program: &BootFile, path: &mut Path) -> Result<Handle> {
    let mut handle: Handle = null_mut();
    let status = call!(
        firmware,
        load_image(
            Boolean::TRUE,
            firmware.image(),
            path.as_mut_ptr(),
            program.start().as_ptr(),
            program.len(),
            &raw mut handle,
        )
    );
    // Firmware loads an image whose signature it does not trust, too.
    let loaded = check("LoadImage", status).map(|()| handle);
    loaded.inspect_err(|_| {
        if !handle.is_null() {
            unload(firmware, handle);
        }
    })
}

fn unload(firmware: Firmware, handle: Handle) {
    // Programs that were not started can be unloaded.
    let _ = call!(firmware, unload_image(handle));
}

/// Lets the loaded program have its command line.
fn set_options(firmware: Firmware, handle: Handle, arguments: &BootFile) -> Result<()> {
    let bytes = u32::try_from(arguments.len()).map_err(|_| Error::Mapping)?;
    let program: NonNull<loaded_image::Protocol> = interface(firmware, handle, loaded_image::PROTOCOL_GUID)?;
    // SAFETY: the firmware's description of a program that was not started.
    unsafe {
        (*program.as_ptr()).load_options = arguments.start().as_ptr();
        (*program.as_ptr()).load_options_size = bytes;
    }
    Ok(())
}

/// The protocol of an initial RAM disk, in the firmware's pool.
#[repr(C)]
struct Initrd {
    protocol: load_file::Protocol,
    start: NonNull<c_void>,
    len: usize,
}

/// An initial RAM disk that the firmware's programs can load.
struct Offer {
    firmware: Firmware,
    handle: Handle,
    initrd: NonNull<Initrd>,
    file: BootFile,
}

impl Offer {
    fn new(firmware: Firmware, file: BootFile) -> Result<Self> {
        let protocol = load_file::Protocol { load_file: load_initrd };
        let initrd = firmware.pool(Initrd { protocol, start: file.start(), len: file.len })?;
        let path = NonNull::from(&INITRD_PATH).cast();
        let installed = add_interface(firmware, None, device_path::PROTOCOL_GUID, path).and_then(|handle| {
            add_interface(firmware, Some(handle), load_file2::PROTOCOL_GUID, initrd.cast()).inspect_err(
                |_| {
                    let _ = remove_interface(firmware, handle, device_path::PROTOCOL_GUID, path);
                },
            )
        });
        match installed {
            Ok(handle) => Ok(Self { firmware, handle, initrd, file }),
            Err(error) => {
                firmware.free_pool(initrd.cast());
                Err(error)
            }
        }
    }

    /// The next program must not find it.
    fn withdraw(self) {
        let Self { firmware, handle, initrd, file } = self;
        if remove_interface(firmware, handle, load_file2::PROTOCOL_GUID, initrd.cast()).is_err() {
            // A program holds it.
            core::mem::forget(file);
            return;
        }
        let path = NonNull::from(&INITRD_PATH).cast();
        let _ = remove_interface(firmware, handle, device_path::PROTOCOL_GUID, path);
        firmware.free_pool(initrd.cast());
    }
}

unsafe extern "efiapi" fn load_initrd(
    this: *mut load_file::Protocol,
    path: *mut device_path::Protocol,
    boot_policy: Boolean,
    size: *mut usize,
    buffer: *mut c_void,
) -> Status {
    if this.is_null() || path.is_null() || size.is_null() {
        return Status::INVALID_PARAMETER;
    }
    if bool::from(boot_policy) {
        return Status::UNSUPPORTED;
    }
    // SAFETY: the firmware passes the installed protocol, the first field of an `Initrd`; the caller's variable, and a buffer of
    // as many bytes.
    unsafe {
        let Initrd { start, len, .. } = *this.cast::<Initrd>();
        let space = size.replace(len);
        if buffer.is_null() || space < len {
            return Status::BUFFER_TOO_SMALL;
        }
        start.cast::<u8>().copy_to(NonNull::new_unchecked(buffer.cast()), len);
    }
    Status::SUCCESS
}
