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

QUOTIENT = {
    "leading_bits": ("{float}", "{float} a", "return {as_float}({as_word}(a) & 0xfffff000u);"),
    "left_over": (
        "{float}",
        "{float} a, {float} b, {float} q",
        "return (((a - leading_bits(q) * leading_bits(b)) - leading_bits(q) * (b - leading_bits(b)))\n"
        "    - (q - leading_bits(q)) * leading_bits(b)) - (q - leading_bits(q)) * (b - leading_bits(b));",
    ),
    "neighbour": (
        "{float}",
        "{float} a, {float} q, {float} left",
        "if ((left > 0.0f) == (a > 0.0f)) {{ return {as_float}({as_word}(q) + 1u); }}\n"
        "  return {as_float}({as_word}(q) - 1u);",
    ),
    "nearest": (
        "{float}",
        "{float} b, {float} q, {float} other, {float} left",
        "if (abs(left) > 0.5f * abs(b * (other - q))) {{ return other; }}\n  return q;",
    ),
    "nearer": (
        "{float}",
        "{float} a, {float} b, {float} q, {float} left",
        "return nearest(b, q, neighbour(a, q, left), left);",
    ),
    "nearest_quotient": (
        "{float}",
        "{float} a, {float} b, {float} q",
        "return nearer(a, b, q, left_over(a, b, q));",
    ),
    "closer": ("{float}", "{float} a, {float} b, {float} q", "return q + left_over(a, b, q) / b;"),
    "quotient": (
        "{float}",
        "{float} a, {float} b",
        "if (abs(a) < 8.67e-19f || abs(a) > 1.15e18f || abs(b) < 8.67e-19f || abs(b) > 1.15e18f) {{ return a / b; }}\n"
        "  return nearest_quotient(a, b, closer(a, b, a / b));",
    ),
}
"""A quotient of f32 that is rounded to the nearest, by what a quotient of a few units in the last place leaves over.

Products of halves of the numbers' bits are exact, as are the differences of what they leave, whether multiplication and
subtraction are fused or not (T. J. Dekker, "A floating-point technique for extending the available precision", 1971).
Quotients of numbers beyond 2**60, whose remainders may not be, are left as they are.
"""

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
