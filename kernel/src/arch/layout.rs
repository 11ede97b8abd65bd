//! Where the link script put things.

use crate::memory_map::Range;

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
    static __fault_stack_guard: u8;
    static __fault_stack_top: u8;
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

/// The pages below the two stacks, which are never mapped: the fault stack's, then the main stack's.
pub fn guard_pages() -> [u64; 2] {
    [(&raw const __fault_stack_guard) as u64, (&raw const __stack_guard) as u64]
}

/// First address behind the stack of double faults.
pub fn fault_stack_top() -> *const u8 {
    &raw const __fault_stack_top
}

/// The main stack: its guard page, its lowest byte, the first address behind it.
pub fn stack_bounds() -> (u64, u64, u64) {
    ((&raw const __stack_guard) as u64, (&raw const __stack_bottom) as u64, (&raw const __stack_top) as u64)
}
