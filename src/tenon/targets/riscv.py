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
    ),
)
