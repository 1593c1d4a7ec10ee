"""RISC-V: 64 bits, scalar and with vectors of at least 128 bits; 32 bits, with Linux and on microcontrollers."""

from dataclasses import replace

from tenon.machine.isa.fp16 import FMA
from tenon.machine.isa.thumb import MUL
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Host, Product, Target
from tenon.machine.targets.board import Board, MemoryRegion
from tenon.machine.targets.runner import qemu_user

_VIRT = Board(
    "virt",
    code=MemoryRegion(0x80000000, 4 << 20),
    stack=MemoryRegion(0x80400000, 4 << 20),
    ram=MemoryRegion(0x81000000, 16 << 20),
    emulator=("qemu-system-riscv32", "-bios", "none"),
    package="qemu-system-misc",
)
_VECTORS = Machine(lanes=16, registers=8, block=16)
"""Groups of four registers (LMUL 4), as compilers use them for vectors of 512 bits where a register has at least 128:
one scalar operand serves 16 lanes, of floats and of the widening products of integers (vwmacc.vx)."""
_VECTOR = Target(
    "riscv64-v",
    _VECTORS,
    "riscv64-linux-musl",
    "baseline_rv64+v",
    about="RISC-V RV64GC with the V extension, vectors of 128 bits, four at a time",
    host=Host("riscv64", frozenset({"v"}), triple="riscv64-linux-gnu"),
    runner=qemu_user("qemu-riscv64", "-cpu", "rv64,v=true,vlen=128"),
    # QEMU 7.2 ends with a failed assertion where vectors of f64 are truncated to i64 (decode_save_opc).
    not_emulated=(
        "Cast(to='i64') f32_i64",
        "Cast(to='i32') f16_i32",
        "RowQuantize() zeros",
        "Cast(to='i8') f32_i8",
        "Cos() odd",
        "Mod(fmod=1) f32_1",
        "Pow() int32_constant",
        "Pow() int8_f32",
        "Pow() int8_f64",
        "Pow() int16_f32",
        "Pow() signed_base",
        "Pow() uint8_f32",
        "QuantizeLinear(to='i8') i8",
        "QuantizeLinear(to='i16') i16",
        "QuantizeLinear(to='i4') i4",
        "QuantizeLinear(to='u2') u2",
        "QuantizeLinear(to='i16', ties='away') i16_away",
        "Cast(to='i4') f32_i4",
        "Cast(to='u2') f32_u2",
        "Mod() f32",
        "QuantizeLinear() u8",
        "QuantizeLinear(to='i8') per_axis",
        "QuantizeLinear(ties='away') u8",
        "Cos() rank1",
    ),
    group=Group.BOARD,
)
_VECTOR_F16 = replace(
    _VECTOR,
    name="riscv64-v-fp16",
    machine=replace(_VECTORS, products=(FMA,)),
    cpu="baseline_rv64+v+zfh+zvfh",
    about="RISC-V RV64GC with the V extension and arithmetic in f16 (Zfh, Zvfh)",
    host=Host("riscv64", frozenset({"v", "zfh", "zvfh"}), triple="riscv64-linux-gnu"),
    # QEMU 7.2 computes with vectors of f16 wherever there are scalar ones; later versions ask for zvfh, and since 8.2
    # their names begin with small letters.
    runner=qemu_user(
        "qemu-riscv64",
        *("-cpu", "rv64,v=true,vlen=128,Zfh=true"),
        newer=("-cpu", "rv64,v=true,vlen=128,zfh=true,zvfh=true"),
        since=(8, 2),
    ),
    tier=2,  # its kernels of f32 and of integers are those of riscv64-v
)
TARGETS = (
    Target(
        "riscv64",
        Machine(lanes=1, registers=32),
        "riscv64-linux-musl",
        "baseline_rv64",
        ("-fno-tree-vectorize",),
        about="RISC-V RV64GC",
        host=Host("riscv64", triple="riscv64-linux-gnu"),
        runner=qemu_user("qemu-riscv64"),
        group=Group.BOARD,
        tier=2,
    ),
    _VECTOR,
    _VECTOR_F16,
    Target(
        "riscv32",
        Machine(lanes=1, registers=32),
        "riscv32-linux-musl",
        "baseline_rv32",
        ("-fno-tree-vectorize",),
        about="RISC-V RV32GC",
        runner=qemu_user("qemu-riscv32"),
        pointer=4,
        group=Group.BOARD,
        tier=2,
    ),
    Target(
        "riscv32imc",
        Machine(lanes=1, registers=24, products=(MUL,), instruction=0.04),
        "riscv32-freestanding",
        "generic_rv32+m+c",
        ("-fno-tree-vectorize", "-fomit-frame-pointer"),
        about="RISC-V RV32IMC without floating point and operating system",
        pointer=4,
        freestanding=True,
        runner=_VIRT.runner,
        linker_script=_VIRT.linker_script,
        group=Group.MICROCONTROLLER,
        tier=2,
    ),
)

PRODUCTS = (
    Product("esp32-c3", "riscv32imc", "Espressif ESP32-C3 (400 KB of RAM)", Group.MICROCONTROLLER),
    Product("esp32-c6", "riscv32imc", "Espressif ESP32-C6 (512 KB of RAM)", Group.MICROCONTROLLER),
    Product("visionfive-2", "riscv64", "StarFive VisionFive 2 (JH7110)", Group.BOARD),
    Product("banana-pi-f3", "riscv64-v", "Banana Pi BPI-F3 (SpacemiT K1)", Group.BOARD),
)
