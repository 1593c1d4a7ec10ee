"""Microcontroller boards, as QEMU models them: where memory lies, and how a program is linked for and run on one.

A new board is a row in the file of its target.  Start-up code is that of ``runtime/c/probe.c``, for every Cortex-M
and RISC-V.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon.machine.targets.runner import Local

_SCRIPT = """\
MEMORY {{
  CODE (rx) : ORIGIN = {code.origin:#010x}, LENGTH = {code.size:#x}
  STACK (rw) : ORIGIN = {stack.origin:#010x}, LENGTH = {stack.size:#x}
  RAM (rw) : ORIGIN = {ram.origin:#010x}, LENGTH = {ram.size:#x}
{constants}}}

ENTRY(tenon_reset)

SECTIONS {{
  .text : {{
    KEEP(*(.vectors))
    *(.text .text.*)
  }} > CODE
  .rodata : {{ *(.rodata .rodata.* .srodata .srodata.*) }} > {constants_in}
  .ARM.exidx : {{ *(.ARM.exidx .ARM.exidx.*) }} > CODE
  /* Where it is used at once: QEMU and debuggers load every section of the file. */
  .data : {{ *(.data .data.* .sdata .sdata.*) }} > RAM
  .bss (NOLOAD) : {{ *(.bss .bss.* .sbss .sbss.* COMMON) }} > RAM
}}

tenon_stack_top = ORIGIN(STACK) + LENGTH(STACK);
"""


@dataclass(frozen=True)
class MemoryRegion:
    """A range of addresses: where it begins, and how many bytes it has."""

    origin: int
    size: int


@dataclass(frozen=True)
class Board:
    """``name`` is QEMU's (``-M``).  Code and constants, the stack, and everything else have a memory
    each; the vector table or the first instruction is at the beginning of ``code``.  Where that is too small for
    constants, they have a memory of their own.  ``emulator`` is the command that models the board, of the Debian
    ``package``."""

    name: str
    code: MemoryRegion
    stack: MemoryRegion
    ram: MemoryRegion
    constants: MemoryRegion | None = None
    emulator: tuple[str, ...] = ("qemu-system-arm",)
    package: str = "qemu-system-arm"

    @property
    def linker_script(self) -> str:
        """GNU ld's language."""
        own = self.constants
        line = f"  CONSTANTS (r) : ORIGIN = {own.origin:#010x}, LENGTH = {own.size:#x}\n" if own else ""
        place = "CONSTANTS" if own else "CODE"
        return _SCRIPT.format(code=self.code, stack=self.stack, ram=self.ram, constants=line, constants_in=place)

    @property
    def runner(self) -> Local:
        """QEMU, with the files of the host by semihosting."""
        command = (
            *self.emulator,
            "-M",
            self.name,
            "-nographic",
            "-monitor",
            "none",
            "-serial",
            "none",
            "-semihosting-config",
            "enable=on,target=native",
            "-kernel",
        )
        return Local(command, f"apt-get install {self.package}", f"QEMU, {self.name}")
