"""Runs a bundle of WebAssembly under wasmtime, as probe.c runs one elsewhere.

    python wasm_probe.py network.wasm ENTRY CONSTANT MUTABLE ACTIVATIONS

Reads weights.bin and input.bin, as many mutable regions as it holds, and writes the regions that come of them to
output.bin.  The numbers are the bytes of the three regions, which lie behind the module's own memory.  With ROUNDS and
WARMUP behind these, the network runs so many times on one region, and output.bin holds pairs of nanoseconds, before
and after each of the rounds.
"""

import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import wasmtime

PAGE = 65536  # bytes
FUEL = 1 << 62  # more than any run takes
NETWORK_FAILED, INPUT_CUT_SHORT = 1, 2


def main(module: str, entry: str, *numbers: str) -> int:
    sizes = constant_size, mutable_size, activations_size = [int(n) for n in numbers[:3]]
    counting = numbers[3:] == ("count",)
    config = wasmtime.Config()
    config.consume_fuel = counting
    store = wasmtime.Store(wasmtime.Engine(config))
    if counting:
        store.set_fuel(FUEL)
    exports: Any = wasmtime.Instance(store, wasmtime.Module.from_file(store.engine, module), []).exports(store)
    memory, places = exports["memory"], [-(-exports["__heap_base"].value(store) // 64) * 64]
    for size in sizes:
        places.append(places[-1] + -(-size // 64) * 64)
    constant, mutable, activations, end = places
    memory.grow(store, max(0, -(-end // PAGE) - memory.size(store)))
    if constant_size:
        memory.write(store, Path("weights.bin").read_bytes(), constant)
    given, answers = Path("input.bin").read_bytes(), []
    if len(given) % max(1, mutable_size):
        return INPUT_CUT_SHORT
    for at in range(0, len(given), max(1, mutable_size)):
        memory.write(store, given[at : at + mutable_size], mutable)
        if activations_size:
            memory.write(store, b"\xff" * activations_size, activations)
        rounds, warmup = (1, 0) if counting else (int(n) for n in numbers[3:5] or (1, 0))
        stamps, full = [], store.get_fuel() if counting else 0
        for _ in range(warmup + rounds):
            began = perf_counter_ns()
            if exports[entry](store, constant, mutable, activations):
                return NETWORK_FAILED
            stamps.append((began, perf_counter_ns()))
        if counting:
            answers.append((full - store.get_fuel()).to_bytes(8, "little"))
        elif numbers[3:]:
            answers += [n.to_bytes(8, "little") for pair in stamps[warmup:] for n in pair]
        else:
            answers.append(bytes(memory.read(store, mutable, mutable + mutable_size)))
    Path("output.bin").write_bytes(b"".join(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
