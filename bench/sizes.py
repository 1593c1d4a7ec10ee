"""Bytes of an empty application, and of one that runs the network of handwritten digits, by target.

    python bench/sizes.py [TARGET ...]

The empty one is an endless loop, the other ``runtime/probe.c`` with start-up code, input and output.  Both are linked
without C library, and without the sections that nothing refers to.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tenon
from tenon.machine.targets import find
from tenon.machine.toolchain.size import Sizes, sizes
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.link import link_freestanding, program_objects

MODEL = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"
TARGETS = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "riscv32imc", "armv7", "aarch64",
           "riscv64", "mips", "x86-64")  # fmt: skip
EMPTY = b"void tenon_probe(void);\nvoid tenon_probe(void) { for (;;) {} }\n"
"""In place of the probe's C: nothing refers to the network."""


def application(bundle: Bundle, *, empty: bool) -> Sizes:
    """The sizes of the probe with a network, or of the start-up code alone."""
    compiler, target = bundle.compiler, bundle.target
    parts = bundle.name, bundle.object, bundle.header, bundle.weights
    objects = program_objects(compiler, target, "probe.c", *parts)
    flags: tuple[str, ...] = ("-static",)
    if empty:
        objects = {"main.o": compiler.compile({"empty.c": EMPTY}, "empty.c", target)}
        flags = (*flags, "-Wl,--entry=tenon_probe")
    elif target.linker_script:
        objects["target.ld"] = target.linker_script.encode()
        flags = (*flags, "-T", "target.ld")
    return sizes(link_freestanding(compiler, target, objects, flags))


def main(names: list[str]) -> None:
    print("| target | empty | with digits: code | of which the network | data | of which weights | zeroed | stack |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in names or TARGETS:
        bundle = tenon.compile(MODEL, target=find(name).name, no_tuning=True)
        bare, whole = (application(bundle, empty=empty) for empty in (True, False))
        stack = "" if bundle.stack is None else f"{bundle.stack:,}"
        weights = f"{len(bundle.weights):,}"
        print(
            f"| {name} | {bare.code + bare.data:,} | {whole.code:,} | {sizes(bundle.object).code:,} | {whole.data:,} |"
            f" {weights} | {whole.zeroed:,} | {stack} |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
