"""The detection post-processing of executables (in C) compared with Python's, bit for bit."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tenon.machine.targets import find as find_target
from tenon.machine.toolchain.compiler import find
from tenon.network.graph.graph import Array
from tenon.network.graph.preprocessing import Heads, Preprocessing, view
from tenon.options import Options
from tenon.runtime.bundle.link import HEADERS, IMAGES, runtime, runtime_objects
from tenon.runtime.bundle.manifest import BundleTensor
from tenon.runtime.bundle.preprocessing import detection_source, preprocessing_source
from tenon.runtime.engine.detect import detections
from tenon.runtime.engine.image import InputImage

CALL = """
#include <stdlib.h>
#include <string.h>
#include "detect.h"
#include "network.h"
const TenonPort tenon_outputs[] = {%s};
uint8_t tenon_mutable[1 << 20];
int detect(const char *outputs, long size, long height, long width, double threshold, double overlap, double *to);
int detect(const char *outputs, long size, long height, long width, double threshold, double overlap, double *to) {
  Detection *detections;
  size_t count;
  memcpy(tenon_mutable, outputs, (size_t)size);
  const DetectionLimits limits = {threshold, overlap};
  const TenonPreprocessing *how = &tenon_preprocessing[0];
  if (tenon_find_detections(how, tenon_mutable, height, width, limits, &detections, &count) != NULL) return -1;
  for (size_t i = 0; i < count; i++) {
    *to++ = (double)detections[i].kind;
    *to++ = (double)detections[i].score;
    memcpy(to, detections[i].box, sizeof detections[i].box);
    to += 4;
  }
  free(detections);
  return (int)count;
}
"""
N = 60
LETTERBOX = Preprocessing(fit="letterbox")


def boxes(rng: np.random.Generator, corners: str, size: tuple[float, float] = (1, 1)) -> Array:
    """Clusters of boxes that overlap, so that NMS has work."""
    centres = rng.random((6, 2))[rng.integers(0, 6, N)] + rng.normal(0, 0.02, (N, 2))
    sides = rng.uniform(0.1, 0.4, (6, 2))[rng.integers(0, 6, N)]
    made = np.concatenate([centres, sides], axis=1)
    if corners != "cxcywh":
        made = np.concatenate([centres - sides / 2, centres + sides / 2], axis=1)
    made = made * np.array(size * 2)
    return np.asarray(made[:, [1, 0, 3, 2]] if corners == "yxyx" else made, np.float32)


def _rows(rng: np.random.Generator) -> dict[str, Array]:
    kinds = rng.integers(-1, 4, (N, 1)).astype(np.float32)
    made = [np.zeros((N, 1), np.float32), kinds, rng.random((N, 1)).astype(np.float32), boxes(rng, "xyxy")]
    return {"a": np.concatenate(made, axis=1)[None, None]}


def _lists(rng: np.random.Generator) -> dict[str, Array]:
    tensors = {"a": boxes(rng, "yxyx")[None], "b": rng.integers(0, 9, (1, N)), "c": rng.random((1, N), np.float32)}
    return {**tensors, "d": np.array([N // 2], np.float32)}


def _boxes(rng: np.random.Generator) -> dict[str, Array]:
    raw = rng.random((N, 3), np.float32) ** 4
    return {"a": boxes(rng, "xyxy")[None], "b": (raw / raw.sum(1, keepdims=True))[None]}


def _scores_of_f16(rng: np.random.Generator) -> dict[str, Array]:
    return {"b": rng.random((N, 5)).astype(np.float16), "a": boxes(rng, "cxcywh", (40, 30))}


def _yolo(rng: np.random.Generator) -> dict[str, Array]:
    made = np.concatenate([boxes(rng, "cxcywh", (40, 30)), rng.random((N, 5), np.float32) ** 0.3], axis=1)
    made[3, 6] = np.nan
    return {"a": made[None]}


def _columns(rng: np.random.Generator) -> dict[str, Array]:
    made = np.concatenate([boxes(rng, "cxcywh", (40, 30)), rng.random((N, 3), np.float32)], axis=1)
    return {"a": np.ascontiguousarray(made.T)[None]}


CASES: dict[str, tuple[Heads, Any, Preprocessing, tuple[int, ...]]] = {
    "rows": (Heads("rows", ("a",), pixels=False, background=0), _rows, Preprocessing(), (1, 3, 30, 40)),
    "lists": (Heads("lists", ("a", "b", "c", "d"), "yxyx", False), _lists, LETTERBOX, (1, 30, 40, 3)),
    "no count": (Heads("lists", ("a", "b", "c"), "yxyx", False), _lists, Preprocessing(fit="crop"), (1, 30, 40, 3)),
    "boxes": (Heads("boxes", ("a", "b")), _boxes, Preprocessing(fit="crop", resize=50), (1, 3, 30, 40)),
    "f16": (Heads("boxes", ("a", "b"), "cxcywh"), _scores_of_f16, LETTERBOX, (1, 3, 30, 40)),
    "yolo": (Heads("yolo", ("a",), "cxcywh", True), _yolo, LETTERBOX, (1, 3, 30, 40)),
    "columns": (Heads("columns", ("a",), "cxcywh", True), _columns, LETTERBOX._replace(within=(30, 40)), (64, 48, 3)),
}
_TYPES = {"float32": "f32", "float16": "f16", "int64": "i64"}


def compiled(folder: Path, case: str) -> tuple[Any, list[str]]:
    """The C function, and the names of the outputs in the order of their memory."""
    heads, make, preprocessing, shape = CASES[case]
    outputs, at = [], 0
    for name, array in make(np.random.default_rng(0)).items():
        outputs.append(BundleTensor(name, _TYPES[str(array.dtype)], array.shape, at, array.nbytes))
        at += array.nbytes
    rows = [
        f'{{"{t.name}", "{t.dtype}", {t.offset}, {t.bytes}, {len(t.shape)}, {{{", ".join(map(str, t.shape))}}}}}'
        for t in outputs
    ]
    image = BundleTensor("x", "u8" if preprocessing.within else "f32", shape, 0, 0)
    text = CALL % ", ".join(rows)
    text += preprocessing_source((image,), {"x": preprocessing}) + detection_source(outputs, heads, ("a?", 'b"', "é"))
    target, compiler = find_target("host"), find(Options())
    files = {**{name: runtime(name) for name in HEADERS}, "call.c": text.encode()}
    objects = {**runtime_objects(compiler, target, IMAGES), "call.o": compiler.compile(files, "call.c", target)}
    place = folder / "call.so"
    place.write_bytes(compiler.link(objects, target, ("-shared", "-lm")))
    return ctypes.CDLL(str(place)), [tensor.name for tensor in outputs]


@pytest.mark.parametrize("case", CASES)
def test_detections_match_python(case: str, tmp_path: Path) -> None:
    heads, make, preprocessing, shape = CASES[case]
    library, names = compiled(tmp_path, case)
    height, width = next((h, w) for h, w in [(shape[0], shape[1]) if preprocessing.within else (30, 40)])
    engine: Any = SimpleNamespace(manifest=SimpleNamespace(heads=heads), name="net")
    counts = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        outputs = make(rng)
        size = wide, high = int(rng.integers(1, 900)), int(rng.integers(1, 900))
        threshold, overlap = float(rng.choice([0.05, 0.3, 0.5, 0.9])), float(rng.choice([0, 0.3, 0.45, 0.9]))
        inner = preprocessing.within or (height, width)
        seen = view(preprocessing, high, wide, height, width)
        if preprocessing.within:
            x, y, box = wide / width, high / height, view(preprocessing, height, width, *inner)
            seen = box[0] * x, box[1] * y, box[2] * x, box[3] * y
        expected = detections(engine, InputImage(np.zeros(0), size, seen, inner), outputs, threshold, overlap)
        memory = b"".join(outputs[name].tobytes() for name in names)
        rows = np.zeros((N, 6))
        place, limits = ctypes.c_void_p(rows.ctypes.data), (ctypes.c_double(threshold), ctypes.c_double(overlap))
        count = library.detect(memory, len(memory), ctypes.c_long(high), ctypes.c_long(wide), *limits, place)
        assert count == len(expected)
        np.testing.assert_array_equal(rows[:count], np.array([(d.kind, d.score, *d.box) for d in expected] or rows[:0]))
        counts.add(count)
    assert len(counts) > 3


def test_labels_are_any_text(tmp_path: Path) -> None:
    library, _ = compiled(tmp_path, "rows")
    names = (ctypes.c_char_p * 4).in_dll(library, "tenon_labels")
    assert [name and name.decode() for name in names] == ["a?", 'b"', "é", None]
