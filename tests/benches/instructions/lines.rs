//! The cache lines that an operation touches, from a trace of its instructions.
//!
//! The processor's trap flag stops the program before each instruction of the operation. A signal handler stores the registers; when the
//! operation is done, each instruction is decoded and the addresses of its memory operands are computed from them.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Register};
use std::arch::asm;
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Instructions that an operation may take: far more than any does.
const MOST_STEPS: usize = 1 << 13;
/// Bytes around the stack pointer that are stack.
const STACK: u64 = 1 << 20;
/// Bytes of the longest instruction.
const LONGEST: usize = 15;

/// The registers before an instruction, as the kernel numbers them.
type Registers = [i64; 23];

struct Steps {
    taken: AtomicUsize,
    registers: UnsafeCell<[Registers; MOST_STEPS]>,
}

// SAFETY: only the handler writes, in the thread that it interrupts; that thread reads when it no longer steps.
unsafe impl Sync for Steps {}

static STEPS: Steps = Steps { taken: AtomicUsize::new(0), registers: UnsafeCell::new([[0; 23]; MOST_STEPS]) };

extern "C" fn keep(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let step = STEPS.taken.fetch_add(1, Ordering::Relaxed);
    if step < MOST_STEPS {
        // SAFETY: SA_SIGINFO makes the third argument the context of the interrupted thread.
        let registers = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        // SAFETY: `step` is inside the array, and `Tracer::lines` reads only after it has cleared the trap flag.
        unsafe { (*STEPS.registers.get())[step] = registers };
    }
}

/// Records the cache lines outside stack, program and `beside`.
pub struct Tracer {
    beside: Vec<Range<u64>>,
}

impl Tracer {
    /// # Errors
    /// The system's, if the handler cannot be installed.
    pub fn new(beside: Vec<Range<u64>>) -> Result<Self, std::io::Error> {
        // SAFETY: all zeros are no flags, an empty mask and no handler.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = keep as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `keep` writes to `STEPS` only.
        match unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) } {
            0 => Ok(Self { beside }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Returns the result of `operation` and the lines that it touched.
    pub fn lines<R>(&self, operation: impl FnOnce() -> R) -> (R, BTreeSet<u64>) {
        STEPS.taken.store(0, Ordering::Relaxed);
        // SAFETY: 1. Only the trap flag changes. 2. `keep` returns to the interrupted instruction.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        let result = operation();
        // SAFETY: as above.
        unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
        let taken = STEPS.taken.load(Ordering::Relaxed);
        assert!((1..MOST_STEPS).contains(&taken), "{taken} steps");
        // SAFETY: the trap flag is clear, so `keep` no longer writes; it wrote `taken` elements.
        let steps = unsafe { &(&(*STEPS.registers.get()))[..taken] };
        let lines = steps.iter().flat_map(accesses).filter(|address| self.counts(*address)).collect();
        (result, lines)
    }

    fn counts(&self, line: u64) -> bool {
        !self.beside.iter().any(|range| range.contains(&line)) && !program().contains(&line)
    }
}

/// Where this program and its constants lie.
fn program() -> Range<u64> {
    unsafe extern "C" {
        static __executable_start: u8;
        static end: u8;
    }
    // The linker's symbols: their addresses alone.
    (&raw const __executable_start).addr() as u64..(&raw const end).addr() as u64
}

/// The first bytes of the lines that the instruction at these registers accesses, but for the stack's.
fn accesses(registers: &Registers) -> Vec<u64> {
    let at = |index: libc::c_int| registers[index as usize] as u64;
    // SAFETY: the program is executed here, and is followed by other parts of it.
    let bytes = unsafe {
        std::slice::from_raw_parts(
            std::ptr::with_exposed_provenance::<u8>(at(libc::REG_RIP) as usize),
            LONGEST,
        )
    };
    let instruction = Decoder::with_ip(64, bytes, at(libc::REG_RIP), DecoderOptions::NONE).decode();
    let value = |register: Register| {
        let of = match register.full_register() {
            Register::RAX => libc::REG_RAX,
            Register::RBX => libc::REG_RBX,
            Register::RCX => libc::REG_RCX,
            Register::RDX => libc::REG_RDX,
            Register::RSI => libc::REG_RSI,
            Register::RDI => libc::REG_RDI,
            Register::RBP => libc::REG_RBP,
            Register::RSP => libc::REG_RSP,
            Register::R8 => libc::REG_R8,
            Register::R9 => libc::REG_R9,
            Register::R10 => libc::REG_R10,
            Register::R11 => libc::REG_R11,
            Register::R12 => libc::REG_R12,
            Register::R13 => libc::REG_R13,
            Register::R14 => libc::REG_R14,
            Register::R15 => libc::REG_R15,
            // Segments begin at 0 but for the thread's own, which no operation uses.
            _ => return Some(0),
        };
        Some(at(of) & (u64::MAX >> (64 - 8 * register.size().min(8))))
    };
    let mut factory = InstructionInfoFactory::new();
    let mut lines = vec![];
    for memory in factory.info(&instruction).used_memory() {
        let size = memory.memory_size().size() as u64;
        let Some(first) = memory.virtual_address(0, |register, _, _| value(register)) else { continue };
        if size == 0 || first.abs_diff(at(libc::REG_RSP)) < STACK {
            continue;
        }
        let last = first + size - 1;
        lines.extend([first / LINE * LINE, last / LINE * LINE]);
    }
    lines
}
