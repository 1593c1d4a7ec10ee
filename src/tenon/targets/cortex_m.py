"""Arm Cortex-M microcontrollers, on the boards of Arm's that QEMU models (MPS2 and MPS3 with their FPGA images)."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Target
from tenon.targets.board import Board, Memory

_AN385 = Board(
    "mps2-an385",
    code=Memory(0x00000000, 4 << 20),
    stack=Memory(0x20000000, 4 << 20),
    ram=Memory(0x21000000, 16 << 20),
)
_AN386 = Board("mps2-an386", _AN385.code, _AN385.stack, _AN385.ram)
_AN500 = Board(
    "mps2-an500",
    code=Memory(0x00000000, 4 << 20),
    stack=Memory(0x20000000, 4 << 20),  # the fast memory
    ram=Memory(0x60000000, 16 << 20),
)
_AN505 = Board(
    "mps2-an505",
    code=Memory(0x10000000, 4 << 20),  # secure, where the processor begins
    stack=Memory(0x38000000, 2 << 20),
    ram=Memory(0x80000000, 16 << 20),
)
_AN547 = Board(
    "mps3-an547",
    code=Memory(0x00000000, 512 << 10),
    stack=Memory(0x30000000, 512 << 10),
    ram=Memory(0x70000000, 16 << 20),
    constants=Memory(0x01000000, 2 << 20),
)
_FLAGS = ("-fno-tree-vectorize", "-fomit-frame-pointer")  # kernels take every register


def _target(name: str, cpu: str, about: str, machine: Machine, board: Board, *, abi: str = "eabihf") -> Target:
    return Target(
        name,
        machine,
        f"thumb-freestanding-{abi}",
        cpu,
        _FLAGS,
        about=about,
        pointer=4,
        freestanding=True,
        runner=board.runner,
        linker_script=board.linker_script,
    )


_CORE = Machine(lanes=1, registers=12, scalar=True)
"""Without floating point: what is left of r0 to r12."""
_SMALL_CORE = Machine(lanes=1, registers=8, scalar=True)
"""Most instructions take r0 to r7 only."""
_DSP = Machine(lanes=1, registers=28, pairs=True)
"""With DSP instructions and a register file of 32 single floats."""
_HELIUM = Machine(lanes=4, registers=8, pairs=True, dot16=True)
"""With vectors of 128 bits."""
_M55 = "cortex_m55+fp_armv8d16+mve-mve_fp"
"""Its vectors are of integers: for those of floats, Clang 22 takes NaN for equal to itself."""

TARGETS = (
    # Its programs run on a board with a Cortex-M3, which executes all of its instructions.
    _target("cortex-m0plus", "cortex_m0plus", "Arm Cortex-M0+", _SMALL_CORE, _AN385, abi="eabi"),
    _target("cortex-m3", "cortex_m3", "Arm Cortex-M3", _CORE, _AN385, abi="eabi"),
    # zig's Cortex-M models have no FPU unless a feature asks for it.
    _target("cortex-m4", "cortex_m4+vfp4d16sp", "Arm Cortex-M4 with FPU", _DSP, _AN386),
    _target("cortex-m7", "cortex_m7+fp_armv8d16", "Arm Cortex-M7 with FPU", _DSP, _AN500),
    _target("cortex-m33", "cortex_m33+dsp+fp_armv8d16sp", "Arm Cortex-M33 with FPU and DSP", _DSP, _AN505),
    _target("cortex-m55", _M55, "Arm Cortex-M55 with FPU and Helium", _HELIUM, _AN547),
)
