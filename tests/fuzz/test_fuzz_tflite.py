"""Mutated TFLite files: the importer raises ModelError only."""

from __future__ import annotations

import pytest

from damage import COUNT, survive
from real import shared
from tenon.formats import importers
from tflite_models import convolution

NAMES = {
    "convolution": "",
    "resize": "tflite_fp32/glow_single_ops/resize_bilinear.tflite",
    "slice": "tflite_fp32/glow_single_ops/strided_slice_test5.tflite",
    "hello": "tflite_int8/hello_world/hello_world_int8.tflite",
    "speech": "tflite_int8/micro_speech/audio_preprocessor_int8.tflite",
    "detection": "tflite_fp32/glow_single_ops/tflite_detection_post_processing_fast.tflite",
}


@pytest.mark.parametrize("name", NAMES)
def test_only_model_errors_escape(name: str) -> None:
    path = NAMES[name]
    data = shared(f"models/{path}").read_bytes() if path else convolution("i8")
    assert survive(name, data, importers.load) > COUNT // 20
