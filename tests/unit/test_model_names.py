"""Symbol names of a bundle: derived from the model's file name, so that several bundles can be linked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import difference
from onnx_models import model as onnx_model
from onnx_models import node
from real import shared
from small_models import ncnn_net
from tenon.formats.importers import load
from tenon.network.graph.graph import Array
from tenon.runtime.bundle.names import identifier

SCALES = (2.0, 3.0)


def exported(scale: float) -> bytes:
    """A model as exporters write them, with the same graph name for all models."""
    made = onnx_model([node("Mul", ["x", "k"], ["y"])], {"x": [1, 4]}, ["y"], {"k": np.full((1,), scale, np.float32)})
    made.graph.name = "torch_jit_export"
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("first.onnx", "first"),
        ("yolov5s-sim.v2.onnx", "yolov5s_sim_v2"),
        ("int.onnx", "int_model"),
        ("3d net.onnx", "model_3d_net"),
        ("模型.onnx", "model"),
        ("model.onnx", "model"),
        ("printf.onnx", "printf_model"),
        ("a.b/deploy.onnx", "a_b"),
        ("while/deploy.onnx", "while_model"),
    ],
)
def test_symbols_are_named_after_the_file(file: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(exported(1.0))
    bundle = tenon.compile(path)
    assert bundle.name == name == identifier(name)
    assert f"int {name}(" in bundle.header
    assert tenon.compile(path, name="mine").name == "mine"
    assert tenon.compile(load(path)).name == name


def test_folder_is_named_after_the_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(exported(1.0))
    assert tenon.compile(tmp_path).name == "net"


@pytest.mark.parametrize("file", ["caffe2/super_resolution", "caffe2/super_resolution/predict_net.pb"])
def test_prescribed_file_names_use_the_folder_name(file: str) -> None:
    assert load(shared(f"models/{file}"), {"1": (1, 1, 224, 224)}).name == "super_resolution"


def test_suffixes_of_two_file_formats_are_removed(tmp_path: Path) -> None:
    (tmp_path / "small.param").write_bytes(ncnn_net("ReLU r 1 1 data y"))
    (tmp_path / "small.bin").write_bytes(b"")
    assert load(tmp_path / "small.param").name == "small"


def test_models_from_memory_use_the_graph_name() -> None:
    assert tenon.compile(exported(1.0)).name == "torch_jit_export"


CLIENT = """
#include <stdio.h>
#include "first.h"
#include "second.h"

TENON_MEM_ALIGN(64) static uint8_t weights[2][4096], tensors[2][4096], scratch[2][4096];

static void show(const float *y) {
    for (int i = 0; i < 4; i++) printf("%g\\n", y[i]);
}

int main(void) {
    FILE *file = fopen("first/first.weights.bin", "rb");
    if (!file || fread(weights[0], 1, FIRST_CONSTANT_MEM_SIZE, file) != FIRST_CONSTANT_MEM_SIZE) return 1;
    fclose(file);
    file = fopen("second/second.weights.bin", "rb");
    if (!file || fread(weights[1], 1, SECOND_CONSTANT_MEM_SIZE, file) != SECOND_CONSTANT_MEM_SIZE) return 1;
    fclose(file);
    float *a = (float *)TENON_GET_ADDR(tensors[0], FIRST_x), *b = (float *)TENON_GET_ADDR(tensors[1], SECOND_x);
    for (int i = 0; i < 4; i++) a[i] = b[i] = i + 1;
    if (first(weights[0], tensors[0], scratch[0]) || second(weights[1], tensors[1], scratch[1])) return 2;
    show((float *)TENON_GET_ADDR(tensors[0], FIRST_y));
    show((float *)TENON_GET_ADDR(tensors[1], SECOND_y));
    return 0;
}
"""


def test_two_exported_models_are_linked_into_one_program(tmp_path: Path) -> None:
    for name, scale in zip(("first", "second"), SCALES, strict=True):
        (tmp_path / f"{name}.onnx").write_bytes(exported(scale))
        bundle = tenon.compile(tmp_path / f"{name}.onnx")
        bundle.save(tmp_path / name)
    (tmp_path / "client.c").write_text(CLIENT)
    parts = ["client.c", "first/first.o", "second/second.o", "-Ifirst", "-Isecond", "-lm", "-pthread", "-o", "client"]
    subprocess.run([*bundle.compiler.command, *parts], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([tmp_path / "client"], cwd=tmp_path, check=True, capture_output=True, text=True)
    answer: Array = np.array(done.stdout.split(), np.float32)
    x = np.arange(1, 5, dtype=np.float32)
    assert difference(answer, np.concatenate([scale * x for scale in SCALES])) < 1e-6
