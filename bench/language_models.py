#!/usr/bin/env python3
"""Tokens per second of a language model beside llama.cpp, on the same file and threads, repetitions interleaved.

    python bench/language_models.py model.gguf [--llama-bench PATH] [--threads 1] [--repeat 5] [--tokens 64]
    python bench/language_models.py --write q4_0 model.gguf      # a Llama of 135 M parameters at random (or q8_0)

Prefill reads --tokens tokens in pieces of 64, decode adds as many one by one behind 8.  Prints tokens in a second of
processor time and of wall time (best of the repetitions), llama.cpp's as differences of runs of llama-bench of two
lengths, the ratios, the seconds of processor time to compile, bytes of the file and of the bundle, and the peak of
memory of a process that runs it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import tenon  # noqa: E402
from gguf_models import F32, STRING, U32, Pair, gguf  # noqa: E402
from tenon.network.graph.graph import Array  # noqa: E402
from tenon.network.passes.block_weights import rounded_blocks  # noqa: E402

VOCABULARY, HIDDEN, WIDE, LAYERS, HEADS, KEY_HEADS, DEPTH = 49152, 576, 1536, 30, 9, 3, 64
PIECE, BEFORE = 64, 8


class Rates(NamedTuple):
    """Seconds for a token."""

    prefill_processor: float
    decode_processor: float
    prefill_wall: float
    decode_wall: float


def write(path: Path, form: str) -> None:
    """A Llama of the sizes of SmolLM-135M with random weights in blocks; embedding and output layer are one matrix."""
    rng = np.random.default_rng(0)
    keys: dict[str, Pair] = {"general.architecture": (STRING, "llama"), "tokenizer.ggml.model": (STRING, "none")}
    sizes = {
        "context_length": 2048,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": WIDE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_HEADS,
        "rope.dimension_count": DEPTH,
        "vocab_size": VOCABULARY,
    }
    keys |= {f"llama.{name}": (U32, size) for name, size in sizes.items()}
    keys |= {"llama.attention.layer_norm_rms_epsilon": (F32, 1e-5), "llama.rope.freq_base": (F32, 10000.0)}
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,)}
    queries, shared = HEADS * DEPTH, KEY_HEADS * DEPTH
    for i in range(LAYERS):
        own = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_output": (HIDDEN, queries)}
        own |= {"attn_q": (queries, HIDDEN), "attn_k": (shared, HIDDEN), "attn_v": (shared, HIDDEN)}
        own |= {"ffn_gate": (WIDE, HIDDEN), "ffn_up": (WIDE, HIDDEN), "ffn_down": (HIDDEN, WIDE)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in own.items()}
    tensors = {}
    for name, shape in shapes.items():
        data = rng.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
        plain = len(shape) == 1
        content = (data * 0.1 + 1).tobytes() if plain else rounded_blocks(data, form).tobytes()
        tensors[f"{name}.weight"] = ("f32" if plain else form, shape, content)
    path.write_bytes(gguf(keys, tensors))


def tokens(count: int) -> Array:
    return np.arange(count, dtype=np.int64)[None] % 1000


def ours(engine: tenon.Engine, count: int) -> Rates:
    """One repetition."""
    engine.reset()
    began = process_time(), perf_counter()
    for start in range(0, count, PIECE):
        engine.run({"tokens": tokens(count)[:, start : start + PIECE]})
    prefill = process_time() - began[0], perf_counter() - began[1]
    engine.reset()
    for _ in range(BEFORE):
        engine.run({"tokens": tokens(1)})
    began = process_time(), perf_counter()
    for _ in range(count):
        engine.run({"tokens": tokens(1)})
    decode = process_time() - began[0], perf_counter() - began[1]
    return Rates(prefill[0] / count, decode[0] / count, prefill[1] / count, decode[1] / count)


def _measured(command: list[str], *lengths: str) -> tuple[float, float]:
    """The processor time of a run of llama-bench, and the seconds for a token that it states."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*command, *lengths], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return processor, 1 / json.loads(done.stdout)[0]["avg_ts"]


def theirs(program: str, model: Path, threads: int, count: int) -> Rates:
    """One repetition of llama.cpp."""
    command = [program, "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json", "-ub", str(PIECE), "--no-warmup"]
    long, prefill_wall = _measured(command, "-p", str(count + PIECE), "-n", "0")
    short, _ = _measured(command, "-p", str(PIECE), "-n", "0")
    more, decode_wall = _measured(command, "-p", "0", "-n", str(count + BEFORE))
    fewer, _ = _measured(command, "-p", "0", "-n", str(BEFORE))
    return Rates((long - short) / count, (more - fewer) / count, prefill_wall, decode_wall)


def best(runs: list[Rates]) -> Rates:
    return Rates(*(min(each) for each in zip(*runs, strict=True)))


def shown(name: str, rates: Rates) -> str:
    pairs = zip(("prefill", "decode"), rates[:2], rates[2:], strict=True)
    return f"{name:10}" + "  ".join(f"{kind} {1 / cpu:.0f} (wall {1 / wall:.0f})" for kind, cpu, wall in pairs)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", choices=("q4_0", "q8_0"), help="write the model first")
    parser.add_argument("--llama-bench", default="", help="the program of llama.cpp; none: Tenon alone")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    if given.write:
        write(given.model, given.write)
    with tempfile.TemporaryDirectory() as folder:
        bundle, began = Path(folder) / "model.tenon", process_time()
        tenon.compile(given.model, name="model", threads=given.threads).save(bundle)
        print(f"compiled in {process_time() - began:.1f} s of processor time (and the C compiler's)")
        print(f"file {given.model.stat().st_size:,} B, bundle {bundle.stat().st_size:,} B")
        own, other = list[Rates](), list[Rates]()
        with tenon.open(bundle, threads=given.threads) as engine:
            cache = engine.manifest.memory.mutable
            for _ in range(given.repeat):
                own.append(ours(engine, given.tokens))
                if given.llama_bench:
                    other.append(theirs(given.llama_bench, given.model, given.threads, given.tokens))
        print(f"cache {cache:,} B, a process that runs it {peak(bundle):.0f} MB")
    print("tokens in a second of processor time (of wall time), best of the repetitions")
    print(shown("Tenon", best(own)))
    if other:
        print(shown("llama.cpp", best(other)))
        ratios = [b / a for a, b in zip(best(own), best(other), strict=True)]
        print("ratios: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(Rates._fields, ratios, strict=True)))


if __name__ == "__main__":
    main()
