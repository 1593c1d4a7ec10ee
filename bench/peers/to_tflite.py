#!/usr/bin/env python3
"""Convert ONNX models to .tflite for LiteRT: python to_tflite.py OUT_FOLDER MODEL.onnx ...

Needs requirements-tflite.txt.  The model goes through PyTorch and takes its images channels last, as LiteRT's own
models do.  Models that cannot be converted are reported and skipped.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import onnx


def convert(model: Path, out: Path) -> None:
    """Write ``out``; raises whatever the converters raise."""
    import litert_torch
    import torch
    from onnx_in_torch import OnnxModule

    class ChannelsLast(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x.permute(0, 3, 1, 2))

    network = onnx.load(model)
    batch, channels, *spatial = (d.dim_value for d in network.graph.input[0].type.tensor_type.shape.dim)
    sample = torch.randn(batch, *spatial, channels)
    made = litert_torch.convert(ChannelsLast(OnnxModule(network)).eval(), (sample,))
    made.export(str(out))


def main() -> int:
    warnings.simplefilter("ignore")
    folder, *models = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for model in models:
        out = folder / f"{model.stem}.tflite"
        try:
            convert(model, out)
            print(f"{model.stem}: {out.stat().st_size} bytes", flush=True)
        except Exception as error:  # a converter may raise anything
            failed += 1
            print(f"{model.stem}: cannot be converted: {type(error).__name__}: {str(error)[:300]}", flush=True)
    return int(failed == len(models))


if __name__ == "__main__":
    sys.exit(main())
