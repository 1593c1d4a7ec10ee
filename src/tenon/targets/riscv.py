"""RISC-V, 64 bits: scalar, and the V extension with at least 128-bit vectors."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Target
from tenon.targets.runner import qemu_user

TARGETS = (
    Target(
        "riscv64",
        Machine(lanes=1, registers=32),
        "riscv64-linux-musl",
        "baseline_rv64",
        ("-fno-tree-vectorize",),
        about="RISC-V RV64GC",
        runner=qemu_user("qemu-riscv64"),
    ),
    Target(
        "riscv64-v",
        Machine(lanes=4, registers=32),
        "riscv64-linux-musl",
        "baseline_rv64+v",
        about="RISC-V RV64GC with the V extension, vectors of 128 bits",
        runner=qemu_user("qemu-riscv64", "-cpu", "rv64,v=true,vlen=128"),
        # QEMU 7.2 ends with a failed assertion where vectors of f64 are truncated to i64 (decode_save_opc).
        not_emulated=(
            "Cast(to='i64') f32_i64",
            "Cast(to='i4') f32_i4",
            "Cast(to='u2') f32_u2",
            "Mod() f32",
            "QuantizeLinear() u8",
        ),
    ),
)
