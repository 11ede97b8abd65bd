//! The entries of both boot protocols, PVH and Multiboot2: from 32-bit protected mode without paging to Rust in long mode.

use core::arch::global_asm;

use crate::arch::boot_memory::{BootMemory, Protocol};

// XEN_ELFNOTE_PHYS32_ENTRY (18): the entry's physical address. QEMU wants the segment's alignment to be 4.
global_asm!(
    r#"
    .pushsection .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .balign 4
    .long pvh_start, 0
    .popsection
    "#
);

// Multiboot2 (specification 2.0, section 3.1): the entry's address, modules on pages, the end. A loader that is entered by EFI prefers the
// entry's tag to the ELF header's.
global_asm!(
    r#"
    .pushsection .multiboot2, "a", @progbits
    .balign 8
multiboot2_header:
    .long 0xe85250d6, 0, multiboot2_header_end - multiboot2_header
    .long -(0xe85250d6 + (multiboot2_header_end - multiboot2_header))
    .short 3, 0
    .long 12, multiboot2_start
    .balign 8
    .short 6, 0
    .long 8
    .short 0, 0
    .long 8
multiboot2_header_end:
    .popsection
    "#
);

// EBX holds the start information's address. The boot page tables map the first 4 GiB one to one, in 2 MiB
// pages; Rust replaces them as soon as it knows the memory map. Everything in .bss is zero: the loader clears it.
global_asm!(
    r#"
    .pushsection .boot, "ax", @progbits
    .code32
    .global pvh_start
    .global multiboot2_start
multiboot2_start:
    mov ebp, {multiboot2}
    jmp 1f
pvh_start:
    mov ebp, {pvh}
1:  cli
    cld
    mov esp, offset __stack_top
    mov esi, ebx

    mov eax, 0x80000000
    cpuid
    cmp eax, 0x80000001
    jb 9f
    mov eax, 0x80000001
    cpuid
    bt edx, 29
    jnc 9f
    bt edx, 20
    jnc 9f

    mov edi, offset boot_directories
    mov eax, 0x83
    mov ecx, 2048
2:  mov [edi], eax
    add eax, 0x200000
    add edi, 8
    dec ecx
    jnz 2b

    mov edi, offset boot_pointers
    mov eax, offset boot_directories
    or eax, 3
    mov ecx, 4
3:  mov [edi], eax
    add eax, 0x1000
    add edi, 8
    dec ecx
    jnz 3b

    mov eax, offset boot_pointers
    or eax, 3
    mov edi, offset boot_root
    mov [edi], eax
    mov cr3, edi

    // Constants: what firmware had switched on (PCIDE, LA57, SMEP, CET) must not stay. CR4: PAE; EFER: LME, NXE;
    // CR0: PG, WP, NE, ET, PE.
    mov eax, 0x20
    mov cr4, eax
    mov ecx, 0xc0000080
    mov eax, 0x900
    xor edx, edx
    wrmsr
    mov eax, 0x80010031
    mov cr0, eax

    mov eax, offset boot_gdt_pointer
    lgdt [eax]
    mov eax, offset boot_long_mode
    push 8
    push eax
    retf

    // No long mode or no no-execute pages: one line, and the machine's exit status.
9:  mov esi, offset boot_complaint
4:  mov al, [esi]
    test al, al
    jz 5f
    mov dx, 0x3f8
    out dx, al
    inc esi
    jmp 4b
5:  mov eax, {exit_machine}
    mov dx, 0xf4
    out dx, eax
6:  hlt
    jmp 6b

    .code64
boot_long_mode:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    lea rsp, [rip + __stack_top]
    mov edi, esi
    mov esi, ebp
    xor ebp, ebp
    call {main}
    ud2

    .balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff
    .quad 0x00cf93000000ffff
boot_gdt_pointer:
    .word 23
    .long boot_gdt
boot_complaint:
    .asciz "error: machine: the CPU has no long mode or no no-execute pages\r\n"
    .popsection

    .pushsection .bss.boot_tables, "aw", @nobits
    .balign 4096
boot_root:
    .skip 4096
boot_pointers:
    .skip 4096
boot_directories:
    .skip 16384
    .popsection
    "#,
    exit_machine = const crate::exit::ExitCode::Machine as u32,
    pvh = const PVH,
    multiboot2 = const MULTIBOOT2,
    main = sym entry,
);

const PVH: u32 = 0;
const MULTIBOOT2: u32 = 1;

/// First Rust code: the stack is `__stack_top`'s, interrupts are off, the first 4 GiB are mapped one to one.
extern "C" fn entry(information: u32, protocol: u32) -> ! {
    let protocol = if protocol == MULTIBOOT2 { Protocol::Multiboot2 } else { Protocol::Pvh };
    crate::start::start(BootMemory::at(information, protocol))
}
