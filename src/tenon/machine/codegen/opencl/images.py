"""Operands that OpenCL kernels can read from images: macros, which the host program turns to reads of texels.

The host defines TENON_IMAGES: 1 where weights are read from images, 2 where activations are, too.  Images are
``image1d_buffer_t`` over the objects of ``gpu.memory_objects``, so that they have the same elements as these.  The
image of a kind and an object has a number, which the host program (``runtime/c/opencl_images.c``) knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenon.machine.codegen.gpu.dialect import MoreArguments
from tenon.machine.codegen.gpu.memory_objects import CONSTANTS, FIRST, PORTS, SECOND, Objects
from tenon.machine.kernel_ir.loops import Type
from tenon.machine.plan.program import Region
from tenon.network.graph.types import DType

FOUR = Type(DType.F32, 4)
_SECOND = "other_activations"
_OBJECTS = {
    CONSTANTS: str(Region.CONSTANT),
    PORTS: str(Region.MUTABLE),
    FIRST: str(Region.ACTIVATIONS),
    SECOND: _SECOND,
}


@dataclass(frozen=True)
class TexelKind:
    """How four elements are read: by ``read`` of a texel with the number ``at >> shift``, where ``at`` counts bytes, or
    from the ``address`` of a buffer."""

    name: str
    read: str
    shift: int
    address: str


KINDS = (
    TexelKind("floats", "read_imagef(texels, {at})", 4, "*(__global const float4 *)(at)"),
    TexelKind("halves", "read_imagef(texels, {at})", 3, "f32x4_of_f16x4(*(__global const ushort4 *)(at))"),
    TexelKind("ints", "read_imagei(texels, {at})", 4, "*(__global const int4 *)(at)"),
    TexelKind("words", "convert_ushort4(read_imageui(texels, {at}))", 3, "*(__global const ushort4 *)(at)"),
)
"""In the order of the numbers of images: floats, floats of 16 bits as floats of 32, integers, floats of 16 bits as
bits."""
FLOATS, HALVES, INTS, WORDS = range(len(KINDS))


@dataclass(frozen=True, order=True)
class Texels:
    """An operand of a function that is read from an image: its number, its name, whether it is weights, the kind."""

    number: int
    operand: str
    weights: bool
    kind: int

    @property
    def level(self) -> str:
        return "WEIGHT" if self.weights else "TENSOR"

    @property
    def image(self) -> str:
        """The parameter of the function."""
        return f"{KINDS[self.kind].name}_of_{self.operand}"

    def read(self, address: str) -> str:
        """The four elements at an address."""
        return f"{self.level}_{KINDS[self.kind].name.upper()}({self.image}, start_of_{self.operand}, {address})"


def parameters(texels: Iterable[Texels]) -> str:
    """The parameters of a function besides its operands."""
    texels = sorted(texels)
    starts = dict.fromkeys((each.level, each.operand) for each in texels)
    return "".join(
        [
            *(f" {each.level}_IMAGE({each.image})" for each in texels),
            *(f" {level}_START(__global const uchar *start_of_{operand})" for level, operand in starts),
        ]
    )


def arguments(texels: Iterable[Texels], objects: Objects, second: bool) -> MoreArguments:
    """The arguments of a kernel that it passes to its function; ``second``: activations have a second object."""
    texels = sorted(texels)
    images = {len(KINDS) * objects[each.number] + each.kind: each.level for each in texels}
    starts = dict.fromkeys((each.level, each.operand, _OBJECTS[objects[each.number]]) for each in texels)
    given = [f" {each.level}_GIVEN(image_{len(KINDS) * objects[each.number] + each.kind})" for each in texels]
    return MoreArguments(
        "".join(
            [
                " OTHER_ACTIVATIONS" if second else "",
                *(f" {images[number]}_IMAGE(image_{number})" for number in sorted(images)),
            ]
        ),
        "".join([*given, *(f" {level}_START((__global const uchar *){memory})" for level, _, memory in starts)]),
        sum(1 << number for number in images),
        _SECOND if second else str(Region.ACTIVATIONS),
    )


def macros(texels: Iterable[Texels]) -> str:
    """The macros of all functions."""
    used = {(each.weights, each.kind) for each in texels}
    text = [line for weights in (True, False) if any(w == weights for w, _ in used) for line in _level(weights, used)]
    if any(not weights for weights, _ in used):
        text += [
            "#if TENON_IMAGES >= 2",
            f"#define OTHER_ACTIVATIONS , __global uchar *{_SECOND}",
            "#else",
            "#define OTHER_ACTIVATIONS",
            f"#define {_SECOND} {Region.ACTIVATIONS}",
            "#endif",
        ]
    return "\n".join([*text, ""])


def _level(weights: bool, used: set[tuple[bool, int]]) -> list[str]:
    kinds = [KINDS[kind] for own, kind in sorted(used) if own == weights]
    level = "WEIGHT" if weights else "TENSOR"
    at = "(int)((__global const uchar *)(at) - (start)) >> {}"
    return [
        f"#if TENON_IMAGES >= {1 if weights else 2}",
        f"#define {level}_IMAGE(name) , __read_only image1d_buffer_t name",
        f"#define {level}_GIVEN(name) , name",
        f"#define {level}_START(start) , start",
        *(
            f"#define {level}_{kind.name.upper()}(texels, start, at) {kind.read.format(at=at.format(kind.shift))}"
            for kind in kinds
        ),
        "#else",
        *(f"#define {level}_{word}(name)" for word in ("IMAGE", "GIVEN", "START")),
        *(f"#define {level}_{kind.name.upper()}(texels, start, at) {kind.address}" for kind in kinds),
        "#endif",
    ]
