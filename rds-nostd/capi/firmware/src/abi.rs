//! The structures of `<mlx/firmware.h>`.

use crate::text::Text;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt;

/// `struct mlx_platform`. The first argument of each function is `context`. Functions from `say` on
/// may be null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MlxPlatform {
    /// The firmware's own.
    pub context: *mut c_void,
    /// BAR0 of the HCA, mapped uncached permanently, and its length.
    pub bar: Option<unsafe extern "C" fn(*mut c_void, *mut usize) -> *mut c_void>,
    /// Whole pages of memory that nothing else ever uses. The HCA reaches them, coherently, at the
    /// address that is stored. If there is no place to store an address, the HCA must not reach
    /// them.
    pub memory: Option<unsafe extern "C" fn(*mut c_void, usize, *mut u64) -> *mut c_void>,
    /// Nanoseconds, of a clock that never goes back.
    pub now: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    /// Waits for an interrupt of the HCA or until this time, without limit for the largest number.
    /// May return early.
    pub idle: Option<unsafe extern "C" fn(*mut c_void, u64)>,
    /// The library has found a mistake of its own: the HCA must be stopped. Does not return.
    pub panic: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>,
    /// Prints a text for people.
    pub say: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>,
    /// Makes memory of the firmware's own visible to the HCA; returns 0 and stores its device
    /// address.
    pub map: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut u64) -> c_int>,
    /// Undoes one `map`.
    pub unmap: Option<unsafe extern "C" fn(*mut c_void, u64, usize)>,
    /// Reads a dword of the function's configuration space.
    pub read_config: Option<unsafe extern "C" fn(*mut c_void, c_uint) -> u32>,
    /// Writes one.
    pub write_config: Option<unsafe extern "C" fn(*mut c_void, c_uint, u32)>,
    /// Function-level reset; 0 once the function answers again, with bus mastering off.
    pub reset: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    /// Switches bus mastering; 0 if it reads back as requested.
    pub bus_master: Option<unsafe extern "C" fn(*mut c_void, c_int) -> c_int>,
    /// Makes what the processor wrote to mapped memory visible to the HCA.
    pub sync_for_device: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize)>,
    /// Makes what the HCA wrote to mapped memory visible to the processor.
    pub sync_for_cpu: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize)>,
}

/// `struct mlx_config`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MlxConfig {
    /// The port's IPv4 address, in network byte order.
    pub address: u32,
    /// Random bits.
    pub seed: [u64; 2],
    /// Grows from boot to boot: the wall clock in nanoseconds, or 0.
    pub boot: u64,
    /// Bytes of memory that the HCA reaches; 0 for 256 MiB.
    pub dma_length: usize,
    /// 1: one protection zone for all peers. 0: one for each, without `RDS_GET_MR`.
    pub shared_keys: u32,
}

// As the header lays them out; a test in C has the same numbers.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<MlxPlatform>() == 120 && size_of::<MlxConfig>() == 48);

impl MlxPlatform {
    /// Prints a text for people.
    pub(crate) fn say(&self, what: &dyn fmt::Display) {
        if let Some(say) = self.say {
            let text = Text::of(what);
            // SAFETY: the firmware's function, with a text of that length.
            unsafe { say(self.context, text.bytes().as_ptr().cast(), text.bytes().len()) };
        }
    }
}
