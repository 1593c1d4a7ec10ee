"""Sums of four products of bytes: operations that x86 with VNNI, Arm and WebAssembly have instructions for.

Words of 32 bits hold four bytes each.  x86 without VNNI has no exact product of bytes (``pmaddubsw`` saturates), so
that the even and the odd bytes of every word are widened to i16 and multiplied by ``pmaddwd``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenon.machine.isa.base import Form, Portable, Primitive, ProductUnit
from tenon.network.graph.dtype import DType

_TAKES = "{V} acc, {V} a, {V} b"
_BYTES = (
    "union {{ {V} v; uint8_t u[4 * {N}]; int8_t s[4 * {N}]; }} x = {{ a }}, y = {{ b }};\n"
    "  for (int i = 0; i < 4 * {N}; i++) acc[i / 4] += x.%s[i] * y.s[i];\n"
    "  return acc;"
)
_SIGNED = "for (int i = 0; i < 32; i += 8) acc += (int8_t)(a >> i) * (int8_t)(b >> i);\n  return acc;"
_UNSIGNED = "for (int i = 0; i < 32; i += 8) acc += ((a >> i) & 255) * (int8_t)(b >> i);\n  return acc;"

_WORDS = (
    "typedef short words __attribute__((vector_size(4 * {N})));\n"
    "  typedef unsigned short uwords __attribute__((vector_size(4 * {N})));\n"
    "  const words b0 = (words)((uwords)b << 8) >> 8, b1 = (words)b >> 8;\n"
)
_SIGNED_LEFT = "  const words a0 = (words)((uwords)a << 8) >> 8, a1 = (words)a >> 8;\n"
_LEFT = {
    "dot4": "  const words a0 = (words)((uwords)a & 255), a1 = (words)((uwords)a >> 8);\n",
    "dot4_signed": _SIGNED_LEFT,
    "dot4_narrow": _SIGNED_LEFT,
}


def by_pairs(name: str, product: str) -> str:
    """The body of ``name`` by two products of pairs of i16, of the even and of the odd bytes; ``product`` is the call,
    of two operands."""
    even, odd = (product % (f"a{i}", f"b{i}") for i in (0, 1))
    return f"{_WORDS}{_LEFT[name]}  return ({{V}})(({{U}})acc + ({{U}}){even} + ({{U}}){odd});"


def in_order(name: str, product: str, register: str) -> str:
    """The same for GCC, which would compute the products of many sums before it adds any, and spill them."""
    even, odd = (product % (f"a{i}", f"b{i}") for i in (0, 1))
    wall = f'  __asm__("" : "+{register}"(acc));\n'
    adds = "".join(f"  acc = ({{V}})(({{U}})acc + ({{U}}){each});\n{wall}" for each in (even, odd))
    return f"{_WORDS}{_LEFT[name]}{adds}  return acc;"


def moved_bytes(condition: str) -> Iterator[Form]:
    """Bytes moved by four bits, where instructions move bytes of vectors of 16."""
    for name, way in (("bytes_left4", "<<"), ("bytes_right4", ">>")):
        text = f"typedef unsigned char bytes __attribute__((vector_size(16)));\n  return ({{V}})((bytes)a {way} 4);"
        yield Form(name, 4, condition, text)


def _byte(word: Any, i: int, *, signed: bool) -> Any:
    """Byte ``i`` of every word as a number."""
    return (word << (24 - 8 * i)) >> 24 if signed else (word >> (8 * i)) & 255


def products(acc: Any, a: Any, b: Any, *, signed: bool = True) -> Any:
    """``acc`` plus the products of the bytes of every word; ``signed``: of ``a``, those of ``b`` always have a sign."""
    for i in range(4):
        acc = acc + _byte(a, i, signed=signed) * _byte(b, i, signed=True)
    return acc


_TWO = (
    "union {{ {V} v; uint8_t u[4 * {N}]; int8_t s[4 * {N}]; }} x = {{ a }}, y = {{ b }}, z = {{ c }}, w = {{ d }};\n"
    "  for (int i = 0; i < 4 * {N}; i++) acc[i / 4] += x.u[i] * y.s[i] + z.u[i] * w.s[i];\n"
    "  return acc;"
)
_TWO_WORDS = (
    "for (int i = 0; i < 32; i += 8)\n"
    "    acc += ((a >> i) & 255) * (int8_t)(b >> i) + ((c >> i) & 255) * (int8_t)(d >> i);\n"
    "  return acc;"
)


def two_small(acc: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """``acc`` plus the products of the bytes of ``a`` and ``b`` and of those of ``c`` and ``d``."""
    return products(products(acc, a, b, signed=False), c, d, signed=False)


def _of_device(product: str) -> dict[str, str]:
    """The bodies of a language of devices from that of one: ``{s}`` is "s" for bytes with a sign on the left, else
    "u", and ``{char}`` their type."""
    signs = {"dot4": ("u", "uchar"), "dot4_signed": ("s", "char")}
    return {name: product.replace("{s}", sign).replace("{char}", of) for name, (sign, of) in signs.items()}


_CUDA = 'int32_t r;\n  asm("dp4a.{s}32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(acc));\n  return r;'
_OPENCL = (
    "#ifdef __opencl_c_integer_dot_product_input_4x8bit_packed\n"
    "  return acc + dot_4x8packed_{s}s_int(as_uint(a), as_uint(b));\n"
    "#else\n"
    "  const int4 products = convert_int4(as_{char}4(a)) * convert_int4(as_char4(b));\n"
    "  return acc + products.x + products.y + products.z + products.w;\n"
    "#endif"
)


def _extracted(function: str, word: str) -> dict[str, str]:
    """The bodies of a language without vectors of bytes, whose ``function`` gives bits of a number."""
    byte = f"{function}({{value}}, {{at}}{word}, 8{word})"
    left = {"dot4": f"{{int}}({byte.replace('{value}', '{word}(a)')})", "dot4_signed": byte.replace("{value}", "a")}
    right = byte.replace("{value}", "b")
    return {
        name: "return acc + " + " + ".join(f"{a} * {right}".replace("{at}", str(at)) for at in (0, 8, 16, 24)) + ";"
        for name, a in left.items()
    }


DEVICES = {
    "cuda": _of_device(_CUDA),
    "opencl": _of_device(_OPENCL),
    "vulkan": _extracted("bitfieldExtract", ""),
    "webgpu": _extracted("extractBits", "u"),
}

DOT4 = ProductUnit("dot4", DType.U8, DType.I8, DType.I32, (1, 1, 4))
DOT4_SIGNED = ProductUnit("dot4_signed", DType.I8, DType.I8, DType.I32, (1, 1, 4))
DOT4_NARROW = ProductUnit("dot4_narrow", DType.I8, DType.I8, DType.I32, (1, 1, 4), narrow=True)

DOT8_SMALL = ProductUnit("dot8_small", DType.U8, DType.I8, DType.I32, (1, 1, 8), time=2.0)

PRIMITIVES = {
    "dot4": Primitive(3, products=4, meaning=lambda acc, a, b: products(acc, a, b, signed=False)),  # u8 * i8
    "dot4_signed": Primitive(3, products=4, meaning=products),  # i8 * i8
    # The same, where no byte of the second factor is -128: two products fit 16 bits.
    "dot4_narrow": Primitive(3, products=4, meaning=products),
    # The sum of two words of products, u8 * i8, of bytes without sign below 64: four products fit 16 bits.
    "dot8_small": Primitive(5, products=8, meaning=two_small),
    # Bytes of words moved by four bits.
    "bytes_left4": Primitive(1, meaning=lambda a: (a << 4) & -0x0F0F0F10),
    "bytes_right4": Primitive(1, meaning=lambda a: (a >> 4) & 0x0F0F0F0F),
}
PORTABLE = {
    "dot4": Portable(_TAKES, _BYTES % "u", _UNSIGNED, first_of_four=True),
    "dot4_signed": Portable(_TAKES, _BYTES % "s", _SIGNED, first_of_four=True),
    "dot4_narrow": Portable(_TAKES, _BYTES % "s", _SIGNED, first_of_four=True),
    "dot8_small": Portable("{V} acc, {V} a, {V} b, {V} c, {V} d", _TWO, _TWO_WORDS),
    "bytes_left4": Portable("{V} a"),
    "bytes_right4": Portable("{V} a"),
}
