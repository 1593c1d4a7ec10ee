"""Quotients of f32 in languages whose division may be a few units in the last place off."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from tenon.machine.codegen.gpu.word_functions import QUOTIENT
from tenon.machine.codegen.vulkan.dialect import Glsl

_HEAD = """\
#include <math.h>
#include <string.h>
typedef unsigned uint;
#define bool int
#define abs fabsf
static float uintBitsToFloat(uint a) { float b; memcpy(&b, &a, 4); return b; }
static uint floatBitsToUint(float a) { uint b; memcpy(&b, &a, 4); return b; }
static int units;
static float off(float a, float b) {
  return a / b == 0 || isinf(a / b) ? a / b : uintBitsToFloat(floatBitsToUint(a / b) + units);
}
"""
_TAIL = """
void quotients(const float *a, const float *b, float *q, int count, int wrong_by) {
  units = wrong_by;
  for (int i = 0; i < count; i++) q[i] = quotient(a[i], b[i]);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions of GLSL, which is C for the most part, with a division that is so many units off."""
    glsl, folder = Glsl(), tmp_path_factory.mktemp("quotients")
    texts = [glsl.helper_text(name, function) for name, function in QUOTIENT.items()]
    text = (
        "\n".join(texts).replace("a / b", "off(a, b)").replace("left_over(a, b, q) / b", "off(left_over(a, b, q), b)")
    )
    assert text.count("off(") == 3
    (folder / "q.c").write_text(_HEAD + text + _TAIL)
    command = [
        "gcc",
        "-O2",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "q.so"),
        str(folder / "q.c"),
        "-lm",
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "q.so"))


@pytest.mark.parametrize("units", [-3, -2, 0, 1, 3])
def test_quotients_are_rounded_once(units: int, library: ctypes.CDLL) -> None:
    """However the division of the device is rounded, within its limits."""
    rng, count = np.random.default_rng(5), 1 << 19
    mantissas = rng.integers(1 << 23, 1 << 24, (2, count)).astype(np.float32)
    a, b = (mantissas * np.exp2(rng.integers(-80, 36, (2, count)))).astype(np.float32) * rng.choice([-1, 1], (2, count))
    a[:8], b[:8] = [1, 3, 2**24 - 1, 0, np.inf, 1, np.nan, 1], [3, 1, 2**23, 5, 2, np.inf, 1, 0]
    a, b = a.astype(np.float32), b.astype(np.float32)
    result = np.empty_like(a)
    library.quotients(*(array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, result)), count, units)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(result, a / b)
