"""A bundle with hand-written C, to test the stages after code generation in isolation: y = 2 x + w over ten floats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tenon.compilation import resolved
from tenon.machine.codegen.backend import SourceFile, TextUnit
from tenon.machine.codegen.c.entry_points import entry_points
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import Call, Memory, Place, Port, Program, Region, StoredConstant
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.preprocessing import Preprocessing
from tenon.network.graph.types import DType, tensor
from tenon.options import Emit, Options, default_cache
from tenon.runtime.bundle import Bundle, SourceRecord

COUNT = 10

SOURCE = """\
#include "{name}.h"

typedef float f4 __attribute__((vector_size(16), aligned(4), may_alias));

static void kernel(const float *restrict x, const float *restrict w, float *restrict y) {{
  for (int i = 0; i < 8; i += 4) *(f4 *)(y + i) = *(const f4 *)(x + i) * 2.0f + *(const f4 *)(w + i);
  for (int i = 8; i < {count}; i++) y[i] = x[i] * 2.0f + w[i];
}}

int {name}(const uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations) {{
  float *scratch = (float *)activations;
  kernel((const float *)mutableWeight, (const float *)constantWeight, scratch);
  for (int r = 0; r < {rounds}; r++)
    for (int i = 0; i < {count}; i++) scratch[i] = scratch[i] * 0.5f + (float)(r % 3);
  for (int i = 0; i < {count}; i++) ((float *)(mutableWeight + 64))[i] = scratch[i];
  return 0;
}}
"""


def bundle(
    target: str = "host",
    cache: Path | None = None,
    *,
    name: str = "affine",
    rounds: int = 0,
    shape: tuple[int, ...] = (1, COUNT),
    emit: tuple[Emit, ...] = (),
    compiler: str | None = None,
    preprocessing: Preprocessing | None = None,
) -> Bundle:
    """``rounds`` repeats the computation; ``shape`` has ten elements; ``preprocessing`` is that of the input, if it
    takes images.
    """
    options = Options(target=target, emit=emit, compiler=compiler, cache=cache or default_cache())
    source = SOURCE.format(name=name, count=COUNT, rounds=rounds)
    origin, by_input = SourceRecord(file="by_hand.onnx", sha256="0" * 64), {"x": preprocessing} if preprocessing else {}
    made = program(name, shape)
    return Bundle(made, unit(made, source), resolved(options, find(target)), origin, by_input)


def unit(program: Program, text: str) -> TextUnit:
    """A unit whose C is ``text``, which has the program's entry points; it has no steps."""
    file = SourceFile(f"{program.name}.c", "c", text, "c")
    return TextUnit((file,), ((),), (entry_points(program, profiled=False),))


def with_source(bundle: Bundle, text: str) -> Bundle:
    """The bundle with other C."""
    return replace(bundle, unit=unit(bundle.program, text))


def program(name: str = "affine", shape: tuple[int, ...] = (1, COUNT)) -> Program:
    where = (Place(Region.MUTABLE, 0), Place(Region.CONSTANT, 0), Place(Region.ACTIVATIONS, 0))
    return Program(
        name,
        (Port("x", tensor(DType.F32, *shape), 0),),
        (Port("y", tensor(DType.F32, *shape), 64),),
        (Call(Kernel("affine", (), (), ()), where, "layer/1", "Affine", COUNT),),
        (StoredConstant(0, weights()),),
        Memory(constant=40, mutable=104, activations=40, bound=40),
    )


def weights() -> Array:
    return np.arange(COUNT, dtype=np.float32)


def expected(x: Array, rounds: int = 0) -> Array:
    y = np.multiply(x, 2, dtype=np.float32) + weights().reshape(x.shape)
    for r in range(rounds):
        y *= np.float32(0.5)
        y += np.float32(r % 3)
    return y
