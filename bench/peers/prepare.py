"""Prepare the model files of each runtime: ONNX with weights, a bundle, ncnn's two files, a .tflite."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT.parent / "shared" / "zoo"


class MissingError(Exception):
    """A runtime cannot be measured; the message has the reason."""


@dataclass(frozen=True)
class Workshop:
    """``models`` contains the ONNX files with weights, ``made`` the converted files.  ``python`` has the peers,
    ``converter`` what ``to_tflite.py`` needs."""

    models: Path
    made: Path
    python: Path
    converter: Path | None
    compiled: set[Path] = field(default_factory=set)
    """Bundles that are up to date."""

    def model(self, runtime: str, net: str, threads: int = 1) -> Path:
        """The file that ``runtime`` loads, in a bundle made for this number of threads.  Raises MissingError."""
        if runtime == "tenon":
            return self.bundle(runtime, net, threads)
        if runtime == "tenon-bf16":
            return self.bundle(runtime, net, threads, precision="bf16")
        if runtime == "tenon-small":  # in fp32, and weights that take hardly more than the model's
            return self.bundle(runtime, net, threads, max_weights=self.onnx(net).stat().st_size * 11 // 10)
        if runtime == "ncnn":
            return self.ncnn(net)
        if runtime.endswith("-int8"):
            quantised = self.quantised(net)
            return self.bundle(runtime, net, threads, quantised) if runtime == "tenon-int8" else quantised
        return self.tflite(net) if runtime == "litert" else self.onnx(net)

    def prepare(self, runtimes: Sequence[str], nets: Sequence[str], threads: Sequence[int], jobs: int) -> None:
        """Make all files that ``model`` returns, in so many processes.  What fails is tried again when it is asked
        for."""
        for precision in ("fp32", "bf16"):  # measured once and kept, before the processors are busy
            _measure_host(precision)
        ours = [name for name in runtimes if name.startswith("tenon")]
        others = [name for name in runtimes if name not in ours]
        with ProcessPoolExecutor(jobs) as pool:
            for of, numbers in ((others, threads[:1]), (ours, threads)):
                asked = [(self, name, net, n) for n in numbers for net in nets for name in of]
                for (_, name, net, n), made in zip(asked, pool.map(_made, asked), strict=True):
                    if made and name in ours:
                        self.compiled.add(self.folder(name, net, n))

    def folder(self, runtime: str, net: str, threads: int) -> Path:
        """A bundle's place."""
        return self.made / runtime / f"{net}-{threads}"

    def onnx(self, net: str) -> Path:
        path = self.models / f"{net}.onnx"
        if not path.exists():
            if not (ZOO / f"{net}.onnx").exists():
                raise MissingError(f"{path} does not exist, and the zoo has no {net}")
            subprocess.run([sys.executable, ZOO / "materialize.py", self.models, net], check=True)
        return path

    def quantised(self, net: str) -> Path:
        """A QDQ model by onnxruntime's quantiser: bytes without sign, weights per channel, calibrated on random
        numbers."""
        path = self.made / "int8" / f"{net}.onnx"
        if not path.exists():
            from qdq import quantise

            quantise(self.onnx(net), path)
        return path

    def bundle(self, runtime: str, net: str, threads: int, model: Path | None = None, **options: Any) -> Path:
        """Compiled once for each object of this class, so that the current code is measured."""
        folder = self.folder(runtime, net, threads)
        if folder not in self.compiled:
            import tenon

            made = tenon.compile(model or self.onnx(net), name="network", threads=threads, **options)
            made.save(folder, ("library", "weights"))
            self.compiled.add(folder)
        return folder

    def ncnn(self, net: str) -> Path:
        folder = self.made / "ncnn" / net
        if not (folder / "model.ncnn.bin").exists():
            program = self.python.parent / "pnnx"
            if not program.exists():
                raise MissingError("pnnx is not installed")
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.onnx(net), folder / "model.onnx")
            subprocess.run([program, "model.onnx", "fp16=0"], cwd=folder, capture_output=True, check=False)
        if not (folder / "model.ncnn.bin").exists():
            raise MissingError("pnnx cannot convert it")
        return folder

    def tflite(self, net: str) -> Path:
        path = self.made / "litert" / f"{net}.tflite"
        if not path.exists():
            if self.converter is None:
                raise MissingError("no .tflite: name a Python that has the converters with --tflite-python")
            script = Path(__file__).with_name("to_tflite.py")
            subprocess.run([self.converter, script, path.parent, self.onnx(net)], capture_output=True, check=False)
        if not path.exists():
            raise MissingError("it cannot be converted to .tflite")
        return path


def _made(asked: tuple[Workshop, str, str, int]) -> bool:
    """Whether a file could be made."""
    shop, *what = asked
    try:
        shop.model(*what)
    except Exception:  # compilers and converters raise anything
        return False
    return True


def _measure_host(precision: str) -> None:
    from tenon.options import Options
    from tenon.pipeline import find_target

    find_target(Options.from_environment(precision=precision))
