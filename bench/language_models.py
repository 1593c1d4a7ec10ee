#!/usr/bin/env python3
"""Tokens per second of a language model beside llama.cpp, on the same file and threads, repetitions interleaved.

    python bench/language_models.py model.gguf [--llama-bench PATH] [--threads 1,2,16] [--repeat 5] [--tokens 64]
    python bench/language_models.py --write q4_k --size 1240m model.gguf      # a Llama at random

Prefill reads --tokens tokens in pieces of --piece, decode adds --decoded one by one behind 8.  Prints tokens in a
second of processor time and of wall time (best of the repetitions), llama.cpp's as differences of runs of llama-bench
of two lengths, the ratios, the seconds of processor time to compile, bytes of the file and of the bundle, and the peak
of memory of a process that runs it.  With --wall llama-bench runs once for each repetition, and only wall time is told.
The bundle is compiled once, for the largest number of threads.  With a --piece of its own it has one program for any
number of tokens: only prefill is what users get, as they decode by a program for one token.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import tenon  # noqa: E402
from gguf_models import F32, STRING, U32, Pair, gguf  # noqa: E402
from tenon.machine.kernels.block_formats import FORMATS, dequantised  # noqa: E402
from tenon.machine.kernels.machine import for_precision  # noqa: E402
from tenon.machine.targets import find  # noqa: E402
from tenon.network.graph.graph import Array  # noqa: E402
from tenon.network.graph.text_shapes import tokens_of_run  # noqa: E402

DEPTH, BEFORE, ROOM = 64, 8, 2048


class Sizes(NamedTuple):
    """Sizes of a Llama whose heads have 64 elements; with ``experts``, a token takes ``chosen`` of them in a layer."""

    vocabulary: int
    hidden: int
    wide: int
    layers: int
    heads: int
    key_heads: int
    experts: int = 0
    chosen: int = 0


SIZES = {
    "135m": Sizes(49152, 576, 1536, 30, 9, 3),
    "150m": Sizes(49152, 1024, 2816, 8, 16, 4),
    "1240m": Sizes(128256, 2048, 8192, 16, 32, 8),
    "480m-experts": Sizes(49152, 1024, 512, 8, 16, 8, experts=32, chosen=8),
}
"""The first is SmolLM-135M's, whose rows are no whole blocks of 256, the third Llama 3.2's of 1 G; the last has a third
of the layers of Granite's 1 G with experts, of which a token takes 180 M parameters."""

WRITTEN = ("q4_0", "q8_0", "q4_k", "q5_k", "q6_k")
SCALES = {"q6_k": (208,), "q4_k": (0, 2), "q5_k": (0, 2)}
"""Where the f16 of a block are, where there is not one at its beginning."""


class Rates(NamedTuple):
    """Seconds for a token."""

    prefill_processor: float
    decode_processor: float
    prefill_wall: float
    decode_wall: float


def blocks(rng: np.random.Generator, rows: int, columns: int, name: str) -> bytes:
    """Rows of random blocks, whose elements have a variance of 1 / ``columns`` or little more."""
    form = FORMATS[name]
    data = rng.integers(0, 256, (rows, columns // form.span, form.nbytes), np.uint8)

    factors = rng.uniform(0.5, 1.5, (rows, columns // form.span, 1))  # as equal scales would be stored once

    def scaled(scale: float) -> None:
        for place, each in zip(SCALES.get(name, (0,)), (scale, scale * ((1 << form.bits) - 1) / 2), strict=False):
            data[..., place : place + 2] = (factors * each).astype("<f2").view(np.uint8)

    scaled(1.0)
    spread = float(dequantised(form, data[:64].reshape(-1, columns // form.span * form.nbytes)).std())
    scaled(1 / spread / math.sqrt(columns))
    return data.tobytes()


def write(path: Path, form: str, size: Sizes) -> None:
    """A Llama with random weights in blocks; embedding and output layer are one matrix."""
    rng = np.random.default_rng(0)
    keys: dict[str, Pair] = {"general.architecture": (STRING, "llama"), "tokenizer.ggml.model": (STRING, "none")}
    numbers = {
        "context_length": 2048,
        "embedding_length": size.hidden,
        "block_count": size.layers,
        "feed_forward_length": size.wide,
        "attention.head_count": size.heads,
        "attention.head_count_kv": size.key_heads,
        "rope.dimension_count": DEPTH,
        "vocab_size": size.vocabulary,
        **({"expert_count": size.experts, "expert_used_count": size.chosen} if size.experts else {}),
    }
    keys |= {f"llama.{name}": (U32, number) for name, number in numbers.items()}
    keys |= {"llama.attention.layer_norm_rms_epsilon": (F32, 1e-5), "llama.rope.freq_base": (F32, 10000.0)}
    shapes = {"token_embd": (size.vocabulary, size.hidden), "output_norm": (size.hidden,)}
    queries, shared = size.heads * DEPTH, size.key_heads * DEPTH
    for i in range(size.layers):
        own = {"attn_norm": (size.hidden,), "ffn_norm": (size.hidden,), "attn_output": (size.hidden, queries)}
        own |= {"attn_q": (queries, size.hidden), "attn_k": (shared, size.hidden), "attn_v": (shared, size.hidden)}
        gated = dict.fromkeys(("ffn_gate", "ffn_up"), (size.wide, size.hidden)) | {"ffn_down": (size.hidden, size.wide)}
        if size.experts:
            gated = {f"{name}_exps": (size.experts, *shape) for name, shape in gated.items()}
            gated["ffn_gate_inp"] = (size.experts, size.hidden)
        shapes |= {f"blk.{i}.{name}": shape for name, shape in (own | gated).items()}
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            kind, content = "f32", (rng.standard_normal(shape, np.float32) * np.float32(0.1) + 1).tobytes()
        elif name.endswith("ffn_gate_inp"):
            kind, content = "f32", (rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(shape[-1]))).tobytes()
        else:
            kind, content = form, blocks(rng, math.prod(shape[:-1]), shape[-1], form)
        tensors[f"{name}.weight"] = (kind, shape, content)
    path.write_bytes(gguf(keys, tensors))


def tokens(count: int) -> Array:
    return np.arange(count, dtype=np.int64)[None] % 1000


def ours(engine: tenon.Engine, count: int, decoded: int, piece: int) -> Rates:
    """One repetition, without copies of the caches, as ``tenon generate`` and the server run networks."""
    engine.reset()
    began = process_time(), perf_counter()
    for start in range(0, count, piece):
        engine.run({"tokens": tokens(count)[:, start : start + piece]}, copy=False)
    prefill = process_time() - began[0], perf_counter() - began[1]
    engine.reset()
    for _ in range(BEFORE):
        engine.run({"tokens": tokens(1)}, copy=False)
    began = process_time(), perf_counter()
    for _ in range(decoded):
        engine.run({"tokens": tokens(1)}, copy=False)
    decode = process_time() - began[0], perf_counter() - began[1]
    return Rates(prefill[0] / count, decode[0] / decoded, prefill[1] / count, decode[1] / decoded)


def _measured(command: list[str], *lengths: str) -> tuple[float, list[float]]:
    """The processor time of a run of llama-bench, and the seconds for a token of each test that it states."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*command, *lengths], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return processor, [1 / float(test["avg_ts"]) for test in json.loads(done.stdout)]


def theirs(program: str, model: Path, threads: int, counts: tuple[int, int], *, wall: bool) -> Rates:
    """One repetition of llama.cpp."""
    count, decoded = counts
    command = [program, "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json"]
    if wall:
        _, (prefill_wall, decode_wall) = _measured(command, "-p", str(count), "-n", str(decoded + BEFORE))
        return Rates(prefill_wall, decode_wall, prefill_wall, decode_wall)
    command.append("--no-warmup")
    long, (prefill_wall,) = _measured(command, "-p", str(2 * count), "-n", "0")
    short, _ = _measured(command, "-p", str(count), "-n", "0")
    more, (decode_wall,) = _measured(command, "-p", "0", "-n", str(decoded + BEFORE))
    fewer, _ = _measured(command, "-p", "0", "-n", str(BEFORE))
    return Rates((long - short) / count, (more - fewer) / decoded, prefill_wall, decode_wall)


def best(runs: list[Rates]) -> Rates:
    return Rates(*(min(each) for each in zip(*runs, strict=True)))


def shown(name: str, rates: Rates, *, wall: bool) -> str:
    pairs = zip(("prefill", "decode"), rates[:2], rates[2:], strict=True)
    if wall:
        return f"{name:10}" + "  ".join(f"{kind} {1 / seconds:.1f}" for kind, _, seconds in pairs)
    return f"{name:10}" + "  ".join(f"{kind} {1 / cpu:.1f} (wall {1 / wall:.1f})" for kind, cpu, wall in pairs)


def peak(bundle: Path) -> float:
    """MB of a process that opens the bundle and runs it."""
    code = (
        "import re, numpy, tenon\n"
        f"with tenon.open({str(bundle)!r}) as engine:\n"
        "    for n in (1, 64): engine.run({'tokens': numpy.zeros((1, n), numpy.int64)})\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1000


def compare(given: argparse.Namespace, bundle: Path, threads: int, count: int) -> None:
    """The rates at a number of threads, of a prompt of ``count`` tokens."""
    own, other = list[Rates](), list[Rates]()
    with tenon.open(bundle, threads=threads) as engine:
        for _ in range(given.repeat):
            own.append(ours(engine, count, given.decoded, given.piece))
            if given.llama_bench:
                counts = count, given.decoded
                other.append(theirs(given.llama_bench, given.model, threads, counts, wall=given.wall))
    print(f"{threads:2} threads, {count:4}: " + shown("Tenon", best(own), wall=given.wall))
    if other:
        ratios = [b / a for a, b in zip(best(own), best(other), strict=True)]
        about = ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(Rates._fields, ratios, strict=True))
        wall = f"{ratios[2]:.2f}, {ratios[3]:.2f}"
        print(f"{'':18}{shown('llama.cpp', best(other), wall=given.wall)}  ratios: {wall if given.wall else about}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", choices=WRITTEN, help="write the model first")
    parser.add_argument("--size", choices=tuple(SIZES), default="135m", help="of the model to write")
    parser.add_argument("--target", default="host")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--llama-bench", default="", help="the program of llama.cpp; none: Tenon alone")
    parser.add_argument("--threads", default="1", help="numbers of threads, with commas")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", default="64", help="of the prompt, several lengths with commas")
    parser.add_argument("--decoded", type=int, default=64)
    parser.add_argument(
        "--piece",
        type=int,
        help="of the prompt, by one program for all; else as language models are compiled by default",
    )
    parser.add_argument("--wall", action="store_true", help="no processor time, for machines that are idle")
    given = parser.parse_args()
    if given.write:
        write(given.model, given.write, SIZES[given.size])
    numbers = [int(number) for number in given.threads.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        bundle, began = Path(folder) / "model.tenon", process_time()
        sizes = {"length": f"1..{given.piece}", "past": f"0..{ROOM - given.piece}"} if given.piece else None
        widened = for_precision(find(given.target).machine, given.precision).bf16_tiles
        given.piece = given.piece or tokens_of_run(max(numbers), threaded=True, widened=widened)
        made = tenon.compile(
            given.model,
            name="model",
            target=given.target,
            threads=max(numbers),
            shapes=sizes,
            precision=given.precision,
        )
        made.save(bundle)
        print(f"compiled in {process_time() - began:.1f} s of processor time (and the C compiler's)")
        print(f"file {given.model.stat().st_size:,} B, bundle {bundle.stat().st_size:,} B")
        for threads, count in product(numbers, map(int, given.tokens.split(","))):
            compare(given, bundle, threads, count)
        if not given.wall:
            print(f"a process that runs it {peak(bundle):.0f} MB")


if __name__ == "__main__":
    main()
