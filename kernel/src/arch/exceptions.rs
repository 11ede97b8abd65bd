//! Segments, the task state with its fault stack, the interrupt descriptor table, and the report of an exception.

use core::arch::{asm, global_asm};
use core::fmt;
use core::mem::MaybeUninit;

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::Cr2;
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{Entry, HandlerFunc};
use x86_64::structures::tss::TaskStateSegment;

use crate::arch::{emergency, exit, interrupts, layout, machine_check, vectors};
use crate::console;
use crate::exit::ExitCode;

/// Vectors below are the CPU's own.
pub const FIRST_INTERRUPT: u8 = 32;

const PAGE_FAULT: u64 = 14;
const DOUBLE_FAULT: u64 = 8;
const NMI: u64 = 2;
const MACHINE_CHECK: u64 = 18;
const STUB_BYTES: usize = 8;
/// Vectors with a stub of their own, and one for all others, which nothing should raise.
const STUBS: usize = vectors::LAST as usize + 2;

// Stubs of 8 bytes: those whose exception has no error code push a zero in its place. The vector
// is computed from the return address, because a push of it would take a stub of 16 bytes. The CPU aligned the stack to 16
// before its own five words; with two more and 15 registers it is aligned again.
global_asm!(
    r#"
    .pushsection .text.interrupt_stubs, "ax", @progbits
    .balign 8
    .global interrupt_stubs
interrupt_stubs:
    .set vector, 0
    .rept {stubs}
    .balign 8
    .if (vector != 8) & (vector != 10) & (vector != 11) & (vector != 12) & (vector != 13) & (vector != 14) & (vector != 17) & (vector != 21) & (vector != 29) & (vector != 30)
    push 0
    .endif
    call interrupt_common
    .set vector, vector + 1
    .endr

interrupt_common:
    push rax
    push rbx
    push rcx
    push rdx
    push rsi
    push rdi
    push rbp
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    cld
    mov rdi, rsp
    call {handler}
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rbp
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rbx
    pop rax
    add rsp, 16
    iretq
    .popsection
    "#,
    handler = sym handle,
    stubs = const STUBS,
);

unsafe extern "C" {
    static interrupt_stubs: [[u8; STUB_BYTES]; STUBS];
}

/// What `interrupt_common` and the CPU pushed, lowest address first.
#[repr(C)]
struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rbp: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    rbx: u64,
    rax: u64,
    /// The return address into the vector's stub.
    stub: u64,
    error_code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

impl Frame {
    fn vector(&self) -> u64 {
        (self.stub - &raw const interrupt_stubs as u64) / STUB_BYTES as u64
    }
}

static mut TSS: TaskStateSegment = TaskStateSegment::new();
static mut GDT: GlobalDescriptorTable = GlobalDescriptorTable::new();
// Written by `init`: a missing entry is not all zeros, and the image would contain 4 KiB of them.
static mut IDT: MaybeUninit<[Entry<HandlerFunc>; 256]> = MaybeUninit::uninit();

/// Loads the tables. Once, before interrupts are on.
pub fn init() {
    // SAFETY:
    // 1. Called once on the only CPU with interrupts off, so nothing else touches the three tables, and nothing changes
    //    them afterwards.
    // 2. The stubs are `STUB_BYTES` apart, keep every register and return by iretq.
    // 3. Code and data segments are flat, as the ones in use.
    unsafe {
        let tss = &raw mut TSS;
        for (index, top) in layout::fault_stack_tops().into_iter().enumerate() {
            (*tss).interrupt_stack_table[index] = address(top);
        }
        let gdt = &raw mut GDT;
        let code = (*gdt).append(Descriptor::kernel_code_segment());
        let data = (*gdt).append(Descriptor::kernel_data_segment());
        let task = (*gdt).append(Descriptor::tss_segment_unchecked(tss));
        (*gdt).load_unsafe();
        CS::set_reg(code);
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        load_tss(task);

        let idt = &raw mut IDT;
        let idt = (*idt).write([Entry::missing(); 256]);
        for (vector, entry) in idt.iter_mut().enumerate() {
            let stub = &raw const interrupt_stubs[vector.min(STUBS - 1)];
            let options = entry.set_handler_addr(address(stub));
            // A stack for each: one may interrupt the report of another.
            let own_stack = [DOUBLE_FAULT, NMI, MACHINE_CHECK].iter().position(|own| *own == vector as u64);
            if let Some(stack) = own_stack {
                options.set_stack_index(stack as u16);
            }
        }
        let limit = (size_of::<[Entry<HandlerFunc>; 256]>() - 1) as u16;
        let pointer = DescriptorTablePointer { limit, base: address(idt) };
        x86_64::instructions::tables::lidt(&pointer);
    }
    machine_check::init();
}

/// The address of something in the image; always canonical, so that no check is in the way.
fn address<T>(at: *const T) -> VirtAddr {
    VirtAddr::new_truncate(at as u64)
}

extern "C" fn handle(frame: &Frame) {
    let vector = frame.vector();
    if vector >= FIRST_INTERRUPT.into() {
        interrupts::handle(vector as u8);
    } else {
        let stopped = if vector == MACHINE_CHECK {
            // The report first, because accesses to a broken device may raise a second machine
            // check, which shuts the processor down.
            report(frame);
            machine_check::report();
            emergency::stop_dma()
        } else {
            let stopped = emergency::stop_dma();
            report(frame);
            stopped
        };
        console::print_regardless(format_args!("  {stopped}\n"));
        exit::exit(ExitCode::Fault);
    }
}

fn name(vector: u64) -> &'static str {
    const NAMES: [&str; 22] = [
        "#DE divide error",
        "#DB debug",
        "NMI non-maskable interrupt",
        "#BP breakpoint",
        "#OF overflow",
        "#BR bound range exceeded",
        "#UD invalid opcode",
        "#NM device not available",
        "#DF double fault",
        "coprocessor segment overrun",
        "#TS invalid TSS",
        "#NP segment not present",
        "#SS stack-segment fault",
        "#GP general protection",
        "#PF page fault",
        "reserved",
        "#MF x87 floating point",
        "#AC alignment check",
        "#MC machine check",
        "#XM SIMD floating point",
        "#VE virtualization",
        "#CP control protection",
    ];
    NAMES.get(vector as usize).unwrap_or(&"reserved")
}

fn report(frame: &Frame) {
    let (cr2, vector) = (Cr2::read_raw(), frame.vector());
    console::print_regardless(format_args!(
        "error: {}: exception {} {}, error code {:#x}{} at rip {:#x}\n",
        emergency::application(),
        vector,
        name(vector),
        frame.error_code,
        Cause { vector, error_code: frame.error_code, address: cr2 },
        frame.rip,
    ));
    console::print_regardless(format_args!(
        "  cs  {:016x}  rflags {:016x}  rsp {:016x}  cr2 {:016x}\n  \
           rax {:016x}  rbx {:016x}  rcx {:016x}  rdx {:016x}\n  \
           rsi {:016x}  rdi {:016x}  rbp {:016x}  r8  {:016x}\n  \
           r9  {:016x}  r10 {:016x}  r11 {:016x}  r12 {:016x}\n  \
           r13 {:016x}  r14 {:016x}  r15 {:016x}  ss  {:016x}\n",
        frame.cs,
        frame.rflags,
        frame.rsp,
        cr2,
        frame.rax,
        frame.rbx,
        frame.rcx,
        frame.rdx,
        frame.rsi,
        frame.rdi,
        frame.rbp,
        frame.r8,
        frame.r9,
        frame.r10,
        frame.r11,
        frame.r12,
        frame.r13,
        frame.r14,
        frame.r15,
        frame.ss,
    ));
    print_stack(frame.rsp);
}

fn print_stack(rsp: u64) {
    const WORDS: u64 = 16;
    let (guard, bottom, top) = layout::stack_bounds();
    // After an overflow the pointer is in the guard page: what is above it is worth seeing.
    let from = if (guard..bottom).contains(&rsp) { bottom } else { rsp };
    if from % 8 != 0 || !(bottom..top).contains(&from) {
        console::print_regardless(format_args!("  stack: rsp is outside the stack {bottom:#x}..{top:#x}\n"));
        return;
    }
    console::print_regardless(format_args!("  stack from {from:#x}:"));
    for i in 0..WORDS.min((top - from) / 8) {
        if i % 4 == 0 {
            console::print_regardless(format_args!("\n   "));
        }
        // SAFETY: an aligned word inside the main stack, which is mapped; it is a copy of whatever is there.
        let word = unsafe { core::ptr::read_volatile((from + i * 8) as *const u64) };
        console::print_regardless(format_args!(" {word:016x}"));
    }
    console::print_regardless(format_args!("\n"));
}

/// The page fault's error code in words (SDM volume 3, section 4.7).
struct Cause {
    vector: u64,
    error_code: u64,
    address: u64,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (guard, bottom, _) = layout::stack_bounds();
        let in_guard = (guard..bottom).contains(&self.address);
        if self.vector == DOUBLE_FAULT && in_guard {
            return write!(f, " (stack overflow)");
        }
        if self.vector != PAGE_FAULT {
            return Ok(());
        }
        let what = match self.error_code {
            code if code & 8 != 0 => "reserved bit in a page table",
            code if code & 16 != 0 => "instruction fetch",
            code if code & 2 != 0 => "write",
            _ => "read",
        };
        let page = if self.error_code & 1 == 0 { "page not present" } else { "protected page" };
        write!(f, " ({what}, {page}, address {:#x})", self.address)
    }
}

/// Raises CPU exceptions, to see what becomes of them. Each call ends in the exception's report.
pub mod raise {
    use super::asm;

    /// #DE: divides by zero.
    pub fn divide() {
        // SAFETY: faults before it changes anything but rax and rdx.
        unsafe {
            asm!("xor edx, edx", "xor ecx, ecx", "div rcx", out("rcx") _, out("rdx") _, inout("rax") 1u64 => _)
        };
    }

    /// #DB by the one-byte trap instruction.
    pub fn debug() {
        // SAFETY: `int1`; the handler does not return.
        unsafe { asm!(".byte 0xf1") };
    }

    /// #BP.
    pub fn breakpoint() {
        x86_64::instructions::interrupts::int3();
    }

    /// #UD.
    pub fn opcode() {
        // SAFETY: the handler does not return.
        unsafe { asm!("ud2") };
    }

    /// #NM: a floating-point instruction while CR0.TS is set.
    pub fn device() {
        // SAFETY: the kernel uses no floating point, so nobody minds TS; the handler does not return.
        unsafe { asm!("mov {0}, cr0", "or {0}, 8", "mov cr0, {0}", "fninit", out(reg) _) };
    }

    /// #GP: a jump to a non-canonical address.
    pub fn general_protection() {
        // SAFETY: a non-canonical jump target faults at the jump; the handler does not return.
        unsafe { asm!("jmp {0}", in(reg) 1u64 << 63) };
    }

    /// #PF: reads the null page.
    pub fn page_read() {
        // SAFETY: page 0 is not mapped: the load faults and the handler does not return.
        unsafe { asm!("mov {0}, [{0}]", inout(reg) 8u64 => _) };
    }

    /// #PF: writes where no memory is.
    pub fn page_write() {
        // SAFETY: the address is not mapped: the store faults and the handler does not return.
        unsafe { asm!("mov [{0}], {0}", in(reg) 0x7fff_dead_b000u64) };
    }

    /// #PF: writes to read-only data.
    pub fn rodata() {
        static CONSTANT: u64 = 0x5eed;
        // SAFETY: the page is read-only: the store faults and the handler does not return.
        unsafe { asm!("mov [{0}], {0}", in(reg) &raw const CONSTANT) };
    }

    /// #PF: executes data.
    pub fn execute() {
        // SAFETY: the page is not executable: the fetch faults and the handler does not return.
        unsafe { asm!("call {0}", in(reg) &raw mut super::TSS) };
    }

    /// #DF: a page fault whose own frame cannot be pushed.
    pub fn double() {
        // SAFETY: the handler runs on the fault stack and does not return.
        unsafe { asm!("mov rsp, {0}", "push rax", in(reg) 0x7fff_dead_b000u64, options(noreturn)) };
    }

    /// NMI: by the local APIC to itself.
    pub fn nmi() {
        crate::arch::apic::self_nmi();
        x86_64::instructions::hlt();
    }

    /// #DF: recurses until the stack's guard page.
    #[inline(never)]
    pub fn stack_overflow(depth: u64) -> u64 {
        let block = core::hint::black_box([depth; 64]);
        if depth == u64::MAX {
            return depth;
        }
        stack_overflow(depth + 1) ^ core::hint::black_box(block)[depth as usize % 64]
    }
}
