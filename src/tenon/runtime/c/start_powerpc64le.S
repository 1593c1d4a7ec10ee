/* Where a program for glibc begins on powerpc64le.  Its __libc_start_main takes other arguments there than that of musl:
   what the loader gives in r3 to r7 (argc, argv, envp, auxv, a function for the end), a table with main, and the
   stack as it was. */

    .abiversion 2
    .section .data.rel.ro, "aw"
    .p2align 3
functions:
    .quad 0, main, 0, 0 /* unused, main, and what older ones call before and after it */

    .text
    .globl _start
    .type _start, @function
_start: /* r12 is its address */
    addis 2, 12, .TOC. - _start@ha
    addi 2, 2, .TOC. - _start@l
    mr 9, 1
    clrrdi 1, 1, 4
    li 0, 0
    mtlr 0
    stdu 0, -32(1) /* a frame without a caller */
    addis 8, 2, functions@toc@ha
    addi 8, 8, functions@toc@l
    bl __libc_start_main
    nop
    trap
    .size _start, . - _start

    .section .note.GNU-stack, "", @progbits
