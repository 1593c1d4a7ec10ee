"""Whole networks in 16-bit precision: size of the weights and accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from real import DIGITS, held_out_digits, shared
from tenon.machine.targets.host_cpu import runs_here
from tenon.network.graph.graph import Array
from tenon.options import Precision
from tenon.runtime.bundle.manifest import read_manifest

NAMES: tuple[Precision, ...] = ("bf16", "fp16")
EVERY: tuple[Precision, ...] = ("fp32", *NAMES)


def answers(precision: Precision) -> Array:
    images, _ = held_out_digits()
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", precision=precision)) as engine:
        return np.stack([engine.run(image)["probabilities"][0] for image in images])


@pytest.mark.parametrize("precision", NAMES)
def test_accuracy_with_16_bit_weights(precision: Precision) -> None:
    """The spacing of bf16 is 2**-8, of fp16 2**-11; each of a few layers adds up to half of it to a probability."""
    exact, actual = answers("fp32"), answers(precision)
    _, labels = held_out_digits()
    assert (actual.argmax(1) == labels).mean() >= 0.97
    assert np.abs(actual - exact).max() < 8 * {"bf16": 2.0**-8, "fp16": 2.0**-11}[precision]


def test_weights_have_half_the_size(tmp_path: Path) -> None:
    sizes = {}
    for precision in EVERY:
        bundle = tenon.compile(DIGITS / "digits.onnx", precision=precision, target="x86-64-avx2", winograd=0)
        bundle.save(tmp_path / precision, emit=("weights", "manifest"))
        assert read_manifest(tmp_path / precision).options["precision"] == precision
        sizes[precision] = bundle.program.memory.constant
    assert sizes["fp16"] == sizes["bf16"] < 0.8 * sizes["fp32"]  # biases and depthwise weights keep their precision


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.05), ("fp16", 0.006)])
def test_face_detector_on_a_photo(precision: Precision, tolerance: float) -> None:
    """Tolerances are twice the errors over 17 photos: 0.025 and 0.0032 of scores, 0.0051 and 0.0008 of boxes."""
    from tenon.network.graph.preprocessing import Preprocessing
    from tenon.runtime.engine.image import read_image

    model = shared("models/onnx/version-RFB-320/version-RFB-320.onnx")
    photo = shared("models/images/coral_grace_hopper.bmp")
    results = {}
    both: tuple[Precision, ...] = ("fp32", precision)
    for name in both:
        with tenon.open(tenon.compile(model, precision=name)) as engine:
            shape = engine.inputs["input"].shape
            results[name] = engine.run(
                {"input": read_image(photo, shape, Preprocessing(mean=(127,), scale=(1 / 128,))).pixels}
            )
    scores, boxes = (np.abs(results[precision][k] - results["fp32"][k]).max() for k in ("scores", "boxes"))
    assert scores < tolerance
    assert boxes < tolerance / 4
    best = {name: int(out["scores"][0, :, 1].argmax()) for name, out in results.items()}
    assert best[precision] == best["fp32"]


def test_bf16_selects_its_own_target() -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", precision="bf16")
    kernels = [call.kernel for call in bundle.program.calls if call.kernel.name.startswith("conv")]
    pairs = any(p.type.dtype == "b2" for kernel in kernels for p in kernel.params)
    assert bundle.target.machine.has("dot2") == runs_here("x86-64-avx512-bf16")
    unit = bundle.target.machine.unit("dot2")
    assert pairs == (
        unit is not None and unit.time == 1
    )  # as measured here; a dense layer may have them for its memory
