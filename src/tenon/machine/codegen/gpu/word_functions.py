"""Helper functions of the languages whose memory is arrays of words (``gpu.words``), in what these languages share.

Words in braces differ between them: ``{let}`` declares a value, ``{float}``, ``{int}`` and ``{word}`` are types,
``{as_float}`` and ``{as_word}`` take the bits of one as the other; ``{cut}...{end}`` narrows an integer.
"""

from __future__ import annotations

from tenon.network.graph.types import DType

BODIES = {
    "max": "if (a > b) {{ return a; }}\n  return b;",
    "min": "if (a < b) {{ return a; }}\n  return b;",
    "select": "if (m != {mask_zero}) {{ return a; }}\n  return b;",
    "abs": "return abs(a);",
    "signed_abs": "if (a < {zero}) {{ return {cut}{zero} - a{end}; }}\n  return a;",
    "sqrt": "return sqrt(a);",
    "floor": "return floor(a);",
    "ceil": "return ceil(a);",
    "trunc": "return trunc(a);",
    "div": "if (b == {zero}) {{ return {zero}; }}\n  return a / b;",
    "signed_div": (
        "if (b == {zero}) {{ return {zero}; }}\n"
        "  if (b == {minus_one}) {{ return {cut}{zero} - a{end}; }}\n"
        "  return a / b;"
    ),
    "mod": "if (b == {zero}) {{ return {zero}; }}\n  return a % b;",
    "signed_mod": "if (b == {zero} || b == {minus_one}) {{ return {zero}; }}\n  return a - (a / b) * b;",
}
"""Operations; ``signed_`` stands before the bodies for integers with a sign, of which a division by -1 may overflow and
a remainder has the sign of the dividend."""

WORDS = {
    "part8": ("{word}", "{word} a, {int} n", "return (a >> ({word}(n & 3) * 8u)) & 0xffu;"),
    "part16": ("{word}", "{word} a, {int} n", "return (a >> ({word}(n & 1) * 16u)) & 0xffffu;"),
    "change8": (
        "{word}",
        "{word} a, {int} n, {word} v",
        "{let} by = {word}(n & 3) * 8u;\n  return ((v << by) ^ a) & (0xffu << by);",
    ),
    "change16": (
        "{word}",
        "{word} a, {int} n, {word} v",
        "{let} by = {word}(n & 1) * 16u;\n  return ((v << by) ^ a) & (0xffffu << by);",
    ),
}
"""A narrow element in its word, and the bits of that word that change when it is stored."""

NARROW = "if (v < {zero}) {{ return 0; }}\n  if (v >= {of}(below)) {{ return below - 1; }}\n  return {int}(v);"
"""An integer as an index."""

CONVERSIONS = {
    (DType.F16, DType.F32): (
        "{float}",
        "{word} a",
        "{let} sign = (a & 0x8000u) << 16u;\n"
        "  {let} exponent = (a >> 10u) & 0x1fu;\n"
        "  {let} rest = a & 0x3ffu;\n"
        "  if (exponent == 0u) {{ return {as_float}({as_word}({float}(rest) * 5.9604644775390625e-8f) | sign); }}\n"
        "  if (exponent == 31u) {{ return {as_float}(0x7f800000u | (rest << 13u) | sign); }}\n"
        "  return {as_float}(((exponent + 112u) << 23u) | (rest << 13u) | sign);",
    ),
    (DType.F32, DType.F16): (
        "{word}",
        "{float} a",
        "{let} bits = {as_word}(a);\n"
        "  {let} sign = (bits >> 16u) & 0x8000u;\n"
        "  {let} u = bits & 0x7fffffffu;\n"
        "  if (u > 0x7f800000u) {{ return sign | 0x7e00u; }}\n"
        "  if (u >= 0x47800000u) {{ return sign | 0x7c00u; }}\n"
        "  if (u < 0x38800000u) {{ return sign | ({as_word}({as_float}(u) + 0.5f) - 0x3f000000u); }}\n"
        "  return sign | ((u - 0x38000000u + 0xfffu + ((u >> 13u) & 1u)) >> 13u);",
    ),
    (DType.BF16, DType.F32): ("{float}", "{word} a", "return {as_float}(a << 16u);"),
    (DType.F32, DType.BF16): (
        "{word}",
        "{float} a",
        "{let} u = {as_word}(a);\n"
        "  {let} high = u >> 16u;\n"
        "  if ((u & 0x7fffffffu) > 0x7f800000u) {{ return high | 0x40u; }}\n"
        "  return (u + (high & 1u) + 0x7fffu) >> 16u;",
    ),
}
"""Floats of 16 bits, which are their bits: round to nearest, ties to even."""
