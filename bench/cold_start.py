#!/usr/bin/env python3
"""The first token of a language model from a cold process beside llama.cpp, on the same file, runs interleaved.

    python bench/cold_start.py model.gguf [--llama-bench PATH] [--repeat 5]
    python bench/cold_start.py --write q4_0 --size 1240m model.gguf      # a Llama at random, with a vocabulary

Prints what compiling takes (processor time of Python, peaks of its own memory and of all that is mapped), the bytes of
file, weights and executable, and for the executable, a second `tenon run` and llama-bench, with one thread: the least
wall time, processor time and peak of memory of a process that gives one token.  llama-bench reads no text.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import resource
import string
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "bench")]

import language_models  # noqa: E402

from gguf_models import ARRAY, F32, I32, STRING, U32, Pair  # noqa: E402

SPACE = "\u2581"


def vocabulary(count: int) -> dict[str, Pair]:
    """The keys of a tokenizer of SentencePiece's kind: bytes, letters and the first words of two to four letters."""
    words = itertools.chain.from_iterable(itertools.product(string.ascii_lowercase, repeat=n) for n in (2, 3, 4))
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), SPACE, *string.ascii_lowercase]
    names += ["".join(word) for word in itertools.islice(words, count - len(names))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (count - 259)]
    return {
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, names)),
        "tokenizer.ggml.scores": (ARRAY, (F32, [-float(i) for i in range(count)])),
        "tokenizer.ggml.token_type": (ARRAY, (I32, kinds)),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
    }


def write(path: Path, form: str, size: language_models.Sizes) -> None:
    """The model of ``bench/language_models.py`` with a vocabulary."""
    plain = language_models.gguf
    language_models.gguf = lambda keys, tensors: plain({**keys, **vocabulary(size.vocabulary)}, tensors)
    language_models.write(path, form, size)


def _memory(process: str, field: str) -> int:
    """MB of a line of a process's status; 0 where there is none."""
    try:
        number = re.search(rf"{field}:\s*(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    return int(number[1]) // 1000 if number else 0


def compiled(model: Path, folder: Path) -> str:
    """Compile the executable in a process of its own; a line about its time and memory."""
    code = f"import tenon\ntenon.compile({str(model)!r}, name='model').save({str(folder)!r}, ('exe', 'weights'))\n"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process, peaks, done = subprocess.Popen([sys.executable, "-c", code], env=_environment()), [0, 0], Event()

    def watch() -> None:
        while not done.wait(0.01):
            for i, field in enumerate(("RssAnon", "VmHWM")):
                peaks[i] = max(peaks[i], _memory(str(process.pid), field))

    watcher = Thread(target=watch)
    watcher.start()
    status = process.wait()
    done.set()
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if status:
        raise SystemExit("compiling failed")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (
        f"compiled in {seconds:.1f} s of processor time, own memory at most {peaks[0]} MB, with mapped files {peaks[1]}"
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def run(command: list[str]) -> tuple[float, float, float]:
    """Seconds of wall and of processor time of a process, and MB of its peak of memory."""
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment()) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with the status {process.returncode}")
    return perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", choices=language_models.WRITTEN, help="write the model first")
    parser.add_argument("--size", choices=tuple(language_models.SIZES), default="135m", help="of the model to write")
    parser.add_argument("--llama-bench", default="", help="the program of llama.cpp; none: Tenon alone")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    if given.write:
        write(given.model, given.write, language_models.SIZES[given.size])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "net"
        print(compiled(given.model, folder))
        sizes = [given.model, folder / "model.weights.bin", folder / "model"]
        print("bytes of file, weights, executable: " + ", ".join(f"{path.stat().st_size:,}" for path in sizes))
        tenon = [sys.executable, "-m", "tenon", "run", str(given.model), "--prompt", "hello", "--max-tokens", "1"]
        programs = {"executable": [str(folder / "model"), "--max-tokens", "1", "hello"], "tenon run": tenon}
        if given.llama_bench:
            common = ["-t", "1", "-r", "1", "-p", "0", "-n", "1", "--no-warmup"]
            programs["llama.cpp"] = [given.llama_bench, "-m", str(given.model), *common]
        wall, processor, memory = run(tenon)
        print(f"first tenon run: {wall:.2f} s, {processor:.2f} s of processor time, {memory:.0f} MB")
        runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in programs}
        for _ in range(given.repeat):
            for name, command in programs.items():
                runs[name].append(run(command))
        for name, each in runs.items():
            wall, processor, memory = (min(column) for column in zip(*each, strict=True))
            print(f"{name:10} {wall:.3f} s, {processor:.3f} s of processor time, {memory:.0f} MB")


if __name__ == "__main__":
    main()
