"""Numbers as C writes them."""

from __future__ import annotations

import math
import struct


def float_literal(value: float, suffix: str) -> str:
    """A number of type float (``suffix`` "f") or double (any other, as "")."""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    if suffix == "f":
        value = struct.unpack("f", struct.pack("f", value))[0]
    return f"{_shortest(value, suffix)}{suffix}"


def _shortest(v: float, suffix: str) -> str:
    """The shortest decimal that reads back as the same number of that width."""
    if suffix != "f":
        return repr(v)
    for digits in range(6, 10):
        text = f"{v:.{digits}g}"
        if struct.pack("f", float(text)) == struct.pack("f", v):
            break
    return text if "." in text or "e" in text else text + ".0"
