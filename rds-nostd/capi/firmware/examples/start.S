/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* From the PVH boot protocol (32-bit protected mode, paging off) to C in 64-bit mode, the first 4 TiB mapped one to one. */

    /* QEMU's -kernel and other loaders find the entry by this note: XEN_ELFNOTE_PHYS32_ENTRY. */
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .long start, 0

    .text
    .code32
    .globl start
start:
    cli
    cld
    movl $stack_end, %esp

    /* Pages of 1 GiB: the first two are memory, what is above them is uncached, for registers. */
    movl $pages, %edi
    movl $0x83, %eax
    xorl %edx, %edx
    movl $(8 * 512), %ecx
1:  movl %eax, (%edi)
    movl %edx, 4(%edi)
    addl $8, %edi
    addl $0x40000000, %eax
    adcl $0, %edx
    cmpl $0x80000083, %eax
    jne 2f
    orl $0x18, %eax
2:  decl %ecx
    jnz 1b

    movl $root, %edi
    movl $pages + 3, %eax
    movl $8, %ecx
3:  movl %eax, (%edi)
    addl $8, %edi
    addl $0x1000, %eax
    decl %ecx
    jnz 3b

    movl $root, %eax
    movl %eax, %cr3
    movl $0x20, %eax            /* CR4: PAE */
    movl %eax, %cr4
    movl $0xc0000080, %ecx      /* EFER: LME */
    movl $0x100, %eax
    xorl %edx, %edx
    wrmsr
    movl $0x80000031, %eax      /* CR0: PG, NE, ET, PE */
    movl %eax, %cr0
    lgdt descriptors_pointer
    ljmp $8, $long_mode

    .code64
long_mode:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movq $stack_end, %rsp
    call main
4:  hlt
    jmp 4b

    .section .rodata
    .balign 8
descriptors:
    .quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff
descriptors_pointer:
    .word . - descriptors - 1
    .long descriptors

    .bss
    .balign 4096
root:
    .skip 4096
pages:
    .skip 8 * 4096
    .skip 256 * 1024
stack_end:

    .section .note.GNU-stack, "", @progbits
