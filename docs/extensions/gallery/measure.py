"""Run a model of the gallery: its answer, sizes, times beside a peer, and the targets that give the same answer."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import tenon
from gallery.files import lay_out
from gallery.models import RESULTS, Model, Variant, options_of
from gallery.peers import open_peer
from tenon.cli.parse import parse_bindings, parse_values
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle import read_manifest

ROUNDS, SECONDS = 200, 4.0
"""Most interleaved repetitions of a time, and how long they take at most."""
_TIME = re.compile(r"^(on .*|(?!.* of sound in ).*\b\d[\d.,]* (s|ms|µs|us)( each)?)$")


@dataclass
class Result:
    """The result of measuring a model, as ``docs/gallery/results/NAME.json`` holds it."""

    date: str
    processor: str
    system: str
    output: str
    variants: list[dict[str, Any]] = field(default_factory=list)
    targets: dict[str, str] = field(default_factory=dict)


def answer(model: Model, folder: Path, *more: str, draw: Path | None = None) -> str:
    """The output of a model's command, run in the folder with its files, without the line of times.

    Raises RuntimeError if it fails.
    """
    drawn = ["--draw", str(draw)] if draw and model.draw else []
    command = [sys.executable, "-m", "tenon", *model.words, *drawn, *more]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{model.name}: {shlex.join(command[2:])}: {done.stderr.strip()}")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines() if not _TIME.match(line)) + "\n"


def wrong(model: Model, output: str) -> list[str]:
    """The expected texts that an output lacks."""
    words = " ".join(output.split())
    return [text for text in model.expect if " ".join(text.split()) not in words]


def measure(model: Model, folders: Sequence[Path], images: Path | None = None) -> Result:
    """Everything that a page tells of a model.  Raises AbsentError without its files, RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lay_out(model, folders, folder)
        if images is not None:
            images.mkdir(parents=True, exist_ok=True)
        output = answer(model, folder, draw=images and images.resolve() / model.image)
        if missing := wrong(model, output):
            raise RuntimeError(f"{model.name}: the output lacks {missing[0]!r}:\n{output}")
        result = Result(date.today().isoformat(), _processor(), platform.system(), output)
        result.variants = [_variant(model, variant, folder) for variant in model.variants]
        result.targets = {target: _on_target(model, target, folder, output) for target in model.targets}
    return result


def save(model: Model, result: Result) -> None:
    """Keep what was measured."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    (RESULTS / f"{model.name}.json").write_text(text + "\n", encoding="utf-8")


def _on_target(model: Model, target: str, folder: Path, output: str) -> str:
    """ "same answer", or what went wrong."""
    try:
        other = answer(model, folder, "--target", target)
    except RuntimeError as error:
        return f"fails: {str(error).splitlines()[-1][:200]}"
    return "same answer" if alike(output, other, _OTHER_ARITHMETIC) else "another answer"


_VARYING = re.compile(r"\b\d[\d.]* (s|ms|µs|us|frames per second)\b")
_OTHER_ARITHMETIC = 0.01
"""How far scores of 8-bit networks differ between the arithmetic of TFLite Micro, the default of microcontrollers, and
that of other targets."""


def alike(a: str, b: str, slack: float = 0.0015) -> bool:
    """Whether two outputs have the same words, and numbers that differ by 2 % or by ``slack``."""
    ours, theirs = (_VARYING.sub("(time)", text).split() for text in (a, b))
    return len(ours) == len(theirs) and all(_same(*pair, slack) for pair in zip(ours, theirs, strict=True))


def _same(a: str, b: str, slack: float) -> bool:
    try:
        x, y = float(a.rstrip("%,")), float(b.rstrip("%,"))
    except ValueError:
        return a == b
    return abs(x - y) <= max(0.02 * abs(y), slack)


def _variant(model: Model, variant: Variant, folder: Path) -> dict[str, Any]:
    """Sizes of a variant's bundle, and its time beside its peer's."""
    words, path = model.words, folder / variant.file
    row: dict[str, Any] = {"type": variant.type, "file": variant.file}
    if variant.quantize:
        row |= _quantised(model, variant, folder)
        words = [word for word in words if word not in ("--weights", *options_of(words, "--weights"))]
    weights = options_of(words, "--weights")
    shapes = parse_bindings(options_of(words, "--shape") or None)
    values = parse_values(options_of(words, "--value") or None)
    bundle = tenon.compile(
        path,
        shapes=shapes[0] if len(shapes) == 1 else None,
        weights=folder / weights[0] if weights else None,
        values=values or None,
    )
    manifest = read_manifest(bundle.save(folder / f"bundle_{variant.type}"))
    row |= {
        "bytes": path.stat().st_size,
        "weights": manifest.memory.constant,
        "ram": manifest.memory.peak,
        "stack": manifest.memory.stack,
        "macs": sum(node.macs for node in manifest.nodes),
        "code": manifest.size.code + manifest.size.data if manifest.size else None,
    }
    with tenon.open(folder / f"bundle_{variant.type}") as engine:
        second = folder / weights[0] if weights else None
        if manifest.language is not None:
            return row | _token_times(engine)
        return row | _times(engine, variant, folder / variant.file, second, values)


def _quantised(model: Model, variant: Variant, folder: Path) -> dict[str, Any]:
    """Make the file of a variant, and the answer of the model's command with it.  Raises RuntimeError if it is not
    the expected one."""
    environment = {**os.environ, "COLUMNS": "100"}
    command = [sys.executable, "-m", "tenon", *shlex.split(variant.quantize)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{model.name}: tenon {variant.quantize}: {done.stderr.strip()}")
    first = model.words[1]
    words = [variant.file if word == first else word for word in model.words] + shlex.split(variant.options)
    other = replace(model, command=shlex.join(words))
    output = answer(other, folder)
    if missing := wrong(replace(other, expect=variant.expect), output):
        raise RuntimeError(f"{model.name}: the output of {variant.file} lacks {missing[0]!r}:\n{output}")
    return {"quantize": f"tenon {variant.quantize}", "options": variant.options, "output": output}


def _times(
    engine: tenon.Engine, variant: Variant, file: Path, second: Path | None, values: dict[str, Any]
) -> dict[str, Any]:
    """Interleaved repetitions, one thread each, on the same random input, and how alike the outputs are."""
    rng = np.random.default_rng(0)
    feeds = {name: _random(array, rng) for name, array in engine.inputs.items()}
    results = {name: array.copy() for name, array in engine.run(feeds).items()}
    row: dict[str, Any] = {}
    run_peer = None
    if variant.peer:
        try:
            row["peer"], run_peer, read = open_peer(variant.peer, file, second, feeds, values)
            row["cosine"] = _likeness(list(results.values()), read())
        except Exception as error:  # every runtime has classes of its own
            row = {"peer_refuses": f"{variant.peer}: {(str(error).splitlines() or [repr(error)])[0][:160]}"}
            run_peer = None
    ours, theirs = _interleaved(lambda: engine.run(feeds), run_peer)
    row |= {"rounds": len(ours), "median_ms": 1e3 * median(ours), "min_ms": 1e3 * min(ours)}
    return row | ({"peer_median_ms": 1e3 * median(theirs), "peer_min_ms": 1e3 * min(theirs)} if theirs else {})


def _token_times(engine: tenon.Engine) -> dict[str, Any]:
    """How long a language model takes for a token, behind as many as there are repetitions."""
    times, _ = _interleaved(lambda: engine.run({"tokens": np.ones((1, 1), np.int64)}), None)
    return {"rounds": len(times), "median_ms": 1e3 * median(times), "min_ms": 1e3 * min(times)}


def _interleaved(ours: Callable[[], object], theirs: Callable[[], object] | None) -> tuple[list[float], list[float]]:
    """Seconds of each repetition."""
    times: tuple[list[float], list[float]] = ([], [])
    end = perf_counter() + SECONDS
    while len(times[0]) < ROUNDS and (len(times[0]) < 5 or perf_counter() < end):
        for run, seconds in zip((ours, theirs), times, strict=True):
            if run is not None:
                start = perf_counter()
                run()
                seconds.append(perf_counter() - start)
    return times


def _likeness(ours: Sequence[Any], theirs: Sequence[Any]) -> float | None:
    """The smallest cosine similarity of outputs of the same size, in their order; None if their sizes differ."""
    pairs = list(zip(sorted(ours, key=np.size), sorted(theirs, key=np.size), strict=False))
    if len(ours) != len(theirs) or any(np.size(a) != np.size(b) for a, b in pairs):
        return None
    return min(_cosine(a, b) for a, b in pairs)


def _cosine(a: Any, b: Any) -> float:
    x, y = (np.asarray(array, np.float64).reshape(-1) for array in (a, b))
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size else 1.0


def _random(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        return np.asarray(rng.integers(limits.min, limits.max, array.shape, array.dtype, endpoint=True))
    return np.asarray(rng.random(array.shape), array.dtype)


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = re.findall(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return names[0] if names else platform.processor() or platform.machine()
