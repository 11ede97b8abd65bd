//! Where the link script put things.

use crate::memory_map::Range;

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
    static __fault_stacks: u8;
    static __stack_guard: u8;
    static __stack_bottom: u8;
    static __stack_top: u8;
}

/// The image's addresses, which are physical and virtual at once.
pub fn image() -> Range {
    Range { start: (&raw const __image_start) as u64, end: (&raw const __image_end) as u64 }
}

/// Where code ends and constants begin; where those end and data begins.
pub fn text_and_rodata_end() -> (u64, u64) {
    ((&raw const __text_end) as u64, (&raw const __rodata_end) as u64)
}

/// Stacks of exceptions that need their own, and the bytes of each with its guard page, as in the
/// link script.
pub const FAULT_STACKS: usize = 3;
const FAULT_STACK_BYTES: usize = 16 << 10;

/// The pages below the stacks, which are never mapped: the fault stacks', then the main stack's.
pub fn guard_pages() -> [u64; FAULT_STACKS + 1] {
    let [first, second, third] = core::array::from_fn(fault_stack_guard).map(|guard| guard as u64);
    [first, second, third, (&raw const __stack_guard) as u64]
}

fn fault_stack_guard(index: usize) -> *const u8 {
    (&raw const __fault_stacks).wrapping_add(index * FAULT_STACK_BYTES)
}

/// First addresses behind the fault stacks.
pub fn fault_stack_tops() -> [*const u8; FAULT_STACKS] {
    core::array::from_fn(|index| fault_stack_guard(index + 1))
}

/// The main stack: its guard page, its lowest byte, the first address behind it.
pub fn stack_bounds() -> (u64, u64, u64) {
    ((&raw const __stack_guard) as u64, (&raw const __stack_bottom) as u64, (&raw const __stack_top) as u64)
}
