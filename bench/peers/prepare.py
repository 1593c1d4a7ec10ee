"""Prepare the model files of each runtime: ONNX with weights, a bundle, ncnn's two files, a .tflite."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
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

    def model(self, runtime: str, net: str) -> Path:
        """What ``runtime`` loads for ``net``.  Raises MissingError."""
        if runtime == "tenon":
            return self.bundle(runtime, net)
        if runtime == "tenon-bf16":
            return self.bundle(runtime, net, precision="bf16")
        if runtime == "tenon-small":  # in fp32, and weights that take hardly more than the model's
            return self.bundle(runtime, net, max_weights=self.onnx(net).stat().st_size * 11 // 10)
        if runtime == "ncnn":
            return self.ncnn(net)
        return self.tflite(net) if runtime == "litert" else self.onnx(net)

    def onnx(self, net: str) -> Path:
        path = self.models / f"{net}.onnx"
        if not path.exists():
            if not (ZOO / f"{net}.onnx").exists():
                raise MissingError(f"{path} does not exist, and the zoo has no {net}")
            subprocess.run([sys.executable, ZOO / "materialize.py", self.models, net], check=True)
        return path

    def bundle(self, runtime: str, net: str, **options: Any) -> Path:
        """Always compiled again, so that the current code is measured; the compilation cache makes this fast."""
        import tenon

        made = tenon.compile(self.onnx(net), name="network", **options)
        return made.save(self.made / runtime / net, ("library", "weights"))

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
