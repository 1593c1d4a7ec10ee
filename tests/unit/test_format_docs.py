"""Every layer that an importer supports is listed in the format's documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tenon.formats.decompositions.onnx.contrib import DOMAINS, MICROSOFT, RUNTIME, SAME
from tenon.formats.decompositions.onnx.qonnx import QONNX
from tenon.formats.importers.caffe2.ops import OPERATORS as CAFFE2
from tenon.formats.importers.darknet.heads import HEADS
from tenon.formats.importers.darknet.layers import ACTIVATIONS
from tenon.formats.importers.darknet.layers import LAYERS as DARKNET
from tenon.formats.importers.darknet.recurrent import RECURRENT
from tenon.formats.importers.mace.ops import OPERATORS as MACE
from tenon.formats.importers.megengine.ops import OPERATORS as MEGENGINE
from tenon.formats.importers.mxnet.ops import OPERATORS as MXNET
from tenon.formats.importers.ncnn.layers import LAYERS as NCNN
from tenon.formats.importers.oneflow.ops import OPERATORS as ONEFLOW
from tenon.formats.importers.paddle.ops import OPERATORS as PADDLE
from tenon.formats.importers.pytorch.ops import OPERATORS as PYTORCH
from tenon.formats.importers.safetensors.load import MODELS as SAFETENSORS
from tenon.formats.importers.tengine.layers import LAYERS as TENGINE

PAGES: dict[str, Iterable[str]] = {
    "darknet": [*DARKNET, *RECURRENT, *HEADS, *ACTIVATIONS],
    "ncnn": NCNN,
    "tengine": [row[0] for row in TENGINE.values()],
    "caffe2": CAFFE2,
    "paddle": PADDLE,
    "mxnet": MXNET,
    "mace": MACE,
    "megengine": MEGENGINE,
    "oneflow": ONEFLOW,
    "pytorch": PYTORCH,
    "safetensors": SAFETENSORS,
    "onnx": [*MICROSOFT, *RUNTIME, *SAME, *QONNX, *DOMAINS],
}


@pytest.mark.parametrize("page", PAGES)
def test_all_supported_layers_are_documented(page: str) -> None:
    text = (Path(__file__).parents[2] / f"docs/reference/formats/{page}.md").read_text()
    words = {"", *re.findall(r"[\w.]+", text.replace(".\n", "\n")), *re.findall(r"`([\w-]+)`", text)}
    assert sorted(set(PAGES[page]) - words) == []
