"""Arm Cortex-M microcontrollers, on the boards of Arm's that QEMU models (MPS2 and MPS3 with their FPGA images)."""

from dataclasses import replace
from typing import Literal

from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.isa.helium import DOT16
from tenon.machine.isa.thumb import MUL
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Product, Target
from tenon.machine.targets.board import Board, MemoryRegion

_AN385 = Board(
    "mps2-an385",
    code=MemoryRegion(0x00000000, 4 << 20),
    stack=MemoryRegion(0x20000000, 4 << 20),
    ram=MemoryRegion(0x21000000, 16 << 20),
)
_AN386 = Board("mps2-an386", _AN385.code, _AN385.stack, _AN385.ram)
_AN500 = Board(
    "mps2-an500",
    code=MemoryRegion(0x00000000, 4 << 20),
    stack=MemoryRegion(0x20000000, 4 << 20),  # the fast memory
    ram=MemoryRegion(0x60000000, 16 << 20),
)
_AN505 = Board(
    "mps2-an505",
    code=MemoryRegion(0x10000000, 4 << 20),  # secure, where the processor begins
    stack=MemoryRegion(0x38000000, 2 << 20),
    ram=MemoryRegion(0x80000000, 16 << 20),
)
_AN547 = Board(
    "mps3-an547",
    code=MemoryRegion(0x00000000, 512 << 10),
    stack=MemoryRegion(0x30000000, 512 << 10),
    ram=MemoryRegion(0x70000000, 16 << 20),
    constants=MemoryRegion(0x01000000, 2 << 20),
)
_FLAGS = ("-fno-tree-vectorize", "-fomit-frame-pointer")  # kernels take every register


def _target(
    name: str,
    cpu: str,
    about: str,
    machine: Machine,
    board: Board,
    *,
    abi: str = "eabihf",
    tier: Literal[1, 2] = 1,
) -> Target:
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
        group=Group.MICROCONTROLLER,
        tier=tier,
    )


_CORE = Machine(lanes=1, registers=12, products=(MUL,), instruction=0.03)
"""Without floating point: what is left of r0 to r12."""
_SMALL_CORE = Machine(lanes=1, registers=8, products=(MUL,), instruction=0.056)
"""Most instructions take r0 to r7 only."""
_DSP = Machine(lanes=1, registers=28, products=(DOT2_I16,), instruction=0.53)
"""With DSP instructions and a register file of 32 single floats."""
_DSP_V5 = replace(_DSP, instruction=0.8)
"""The same with the FPU of Armv8, which takes the larger of two floats in one instruction."""
_SOFT = Machine(lanes=1, registers=12, products=(DOT2_I16,), instruction=0.048)
"""With DSP instructions, without floating point."""
_HELIUM = Machine(lanes=4, registers=8, products=(DOT2_I16, DOT16), instruction=0.79)
"""With vectors of 128 bits."""
_M55 = "cortex_m55+fp_armv8d16+mve-mve_fp"
"""Cortex-M55 with vectors of integers only: for those of floats, Clang 22 takes NaN for equal to itself."""
_M85 = "cortex_m85+fp_armv8d16+mve-mve_fp"

TARGETS = (
    # The target's programs run on a board with a Cortex-M3, which executes all of its instructions.
    _target("cortex-m0plus", "cortex_m0plus", "Arm Cortex-M0+", _SMALL_CORE, _AN385, abi="eabi"),
    _target("cortex-m3", "cortex_m3", "Arm Cortex-M3", _CORE, _AN385, abi="eabi", tier=2),
    # zig's Cortex-M models have no FPU unless a feature asks for it.
    _target("cortex-m4", "cortex_m4+vfp4d16sp", "Arm Cortex-M4 with FPU", _DSP, _AN386),
    _target("cortex-m7", "cortex_m7+fp_armv8d16", "Arm Cortex-M7 with FPU", _DSP_V5, _AN500, tier=2),
    _target("cortex-m33", "cortex_m33+dsp+fp_armv8d16sp", "Arm Cortex-M33 with FPU and DSP", _DSP, _AN505, tier=2),
    _target("cortex-m55", _M55, "Arm Cortex-M55 with FPU and Helium", _HELIUM, _AN547),
    _target("cortex-m0", "cortex_m0", "Arm Cortex-M0", _SMALL_CORE, _AN385, abi="eabi", tier=2),
    _target("cortex-m23", "cortex_m23", "Arm Cortex-M23", _SMALL_CORE, _AN505, abi="eabi", tier=2),
    _target(
        "cortex-m7-sp",
        "cortex_m7+fp_armv8d16sp",
        "Arm Cortex-M7 with an FPU for single precision only",
        _DSP_V5,
        _AN500,
        tier=2,
    ),
    _target(
        "cortex-m7-nofp", "cortex_m7", "Arm Cortex-M7 without FPU (software floats)", _SOFT, _AN500, abi="eabi", tier=2
    ),
    _target(
        "cortex-m4-nofp", "cortex_m4", "Arm Cortex-M4 without FPU (software floats)", _SOFT, _AN386, abi="eabi", tier=2
    ),
    _target(
        "cortex-m33-nofp",
        "cortex_m33+dsp",
        "Arm Cortex-M33 with DSP, without FPU (software floats)",
        _SOFT,
        _AN505,
        abi="eabi",
        tier=2,
    ),
    # On a board with a Cortex-M55: QEMU 7.2 has no Cortex-M85, whose other instructions compilers do not use here.
    _target("cortex-m85", _M85, "Arm Cortex-M85 with FPU and Helium", _HELIUM, _AN547, tier=2),
)

_SOFTFP = {"arduino-nano-33-ble", "arduino-portenta-h7"}
"""Boards of Arduino's mbed core, which passes floats in core registers."""

PRODUCTS = tuple(
    Product(name, target, about, Group.MICROCONTROLLER, "softfp" if name in _SOFTFP else None)
    for name, target, about in (
        ("stm32f0", "cortex-m0", "ST STM32F0"),
        ("stm32f1", "cortex-m3", "ST STM32F1"),
        ("stm32f4", "cortex-m4", "ST STM32F4"),
        ("stm32f7", "cortex-m7", "ST STM32F7 (with the double-precision FPU: F76x, F77x; others: cortex-m7-sp)"),
        ("stm32f746", "cortex-m7-sp", "ST STM32F745, F746 and F756"),
        ("stm32h7", "cortex-m7", "ST STM32H7"),
        ("stm32l4", "cortex-m4", "ST STM32L4"),
        ("stm32u5", "cortex-m33", "ST STM32U5"),
        ("stm32n6", "cortex-m55", "ST STM32N6"),
        ("nrf51", "cortex-m0", "Nordic nRF51"),
        ("nrf52", "cortex-m4", "Nordic nRF52832, nRF52840 (nRF52810 and nRF52811: cortex-m4-nofp)"),
        ("nrf53", "cortex-m33", "Nordic nRF5340, application core"),
        ("nrf91", "cortex-m33", "Nordic nRF9160"),
        ("rp2040", "cortex-m0plus", "Raspberry Pi RP2040, Pico (264 KB of RAM)"),
        ("rp2350", "cortex-m33", "Raspberry Pi RP2350, Pico 2, Arm cores (520 KB of RAM)"),
        ("arduino-nano-33-ble", "cortex-m4", "Arduino Nano 33 BLE (nRF52840)"),
        ("arduino-portenta-h7", "cortex-m7", "Arduino Portenta H7 (STM32H747), Cortex-M7 core"),
        ("imxrt1060", "cortex-m7", "NXP i.MX RT1060, Teensy 4"),
        ("samd21", "cortex-m0plus", "Microchip SAM D21, Arduino Zero"),
        ("ra8", "cortex-m85", "Renesas RA8"),
    )
)
