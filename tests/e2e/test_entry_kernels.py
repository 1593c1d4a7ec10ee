"""Kernels of devices with pointers: one for all steps that differ only in where their operands lie."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

import tenon
from gpu_devices import needs_compiler, why_not
from onnx_models import model, node, random
from tenon.network.graph.graph import Array
from tenon.runtime.engine import open_bundle

LAYERS = 5


def layers() -> onnx.ModelProto:
    """Equal layers with different weights."""
    nodes, weights = [], dict[str, Array]()
    for i in range(LAYERS):
        weights |= {f"w{i}": random(3, 3, 3, 3, seed=i), f"b{i}": random(3, seed=100 + i)}
        nodes.append(node("Conv", [f"x{i}", f"w{i}", f"b{i}"], [f"x{i + 1}"], pads=[1, 1, 1, 1]))
    return model(nodes, {"x0": (1, 3, 6, 7)}, [f"x{LAYERS}"], weights)


@pytest.mark.parametrize("language", ["opencl", "cuda"])
def test_equal_layers_have_one_kernel(language: str) -> None:
    needs_compiler(language)
    bundle = tenon.compile(layers().SerializeToString(), target=language, no_tuning=True)
    kernels = next(file.text for file in bundle.unit.files if not file.name.endswith(".c"))
    (steps,) = bundle.unit.steps
    functions = {step.function for step in steps}
    entries = re.findall(r"\w+_step_\d+\(", kernels)
    assert len(steps) >= LAYERS
    assert len(functions) <= len(entries) < len(steps)
    assert f", and {LAYERS - 2} more */" in kernels  # all but the first, which reads the input
    rows = re.findall(r'\{"(\w+_step_\d+)", \d+, \d+, 0, "\w+", 0x\w+, \d+, (\d+), (\d+)\}', bundle.source)
    assert len(rows) == len(steps)
    assert {f"{name}(" for name, *_ in rows} == {*entries}
    (table,) = re.findall(r"static const int \w+_offsets\[\] = \{\n(.*?)\n\};", bundle.source, re.DOTALL)
    offsets = [int(line.strip(" ,")) for line in table.splitlines()]
    shared = [tuple(offsets[int(first) : int(first) + int(count)]) for _, first, count in rows if int(count)]
    assert len(shared) == LAYERS - 1
    assert len({*shared}) == len(shared)  # no two steps read and write the same memory


@pytest.mark.parametrize("language", ["opencl", "cuda"])
def test_each_step_has_its_own_operands(language: str) -> None:
    if why := why_not(language):
        pytest.skip(why)
    x = random(1, 3, 6, 7, seed=7)
    with (
        open_bundle(tenon.compile(layers().SerializeToString(), target=language, no_tuning=True)) as device,
        open_bundle(tenon.compile(layers().SerializeToString(), no_tuning=True)) as host,
    ):
        right = host.run(x)
        for name, got in device.run(x).items():
            np.testing.assert_allclose(got, right[name], atol=1e-5 * np.abs(right[name]).max())
