"""Ranges of tensors in files: written by hand, or by the tools of other systems.

| format | content |
|---|---|
| ``yaml`` | ``tensor: [least, greatest]``, a line each |
| ``tengine`` | ``tensor scale zero_point``, a line each: the ``.scale`` tables of Tengine's quant_tool |
| ``mace`` | ``tensor@@least,greatest``, a line each: MACE's ``quantize_range_file`` |
| ``glow`` | three YAML documents: Glow's ``-dump-profile`` |
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from tenon.atomic_write import write
from tenon.errors import InputError
from tenon.input_file import read_regular
from tenon.network.ops.requantize import limits
from tenon.tools.quantization import glow_profile
from tenon.tools.quantization.scheme import Scheme

Ranges = dict[str, tuple[float, float]]
"""The least and the greatest value of tensors by their names."""

FORMATS = ("yaml", "tengine", "mace", "glow")

_YAML = re.compile(
    r"""(?P<name>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#"'\[\]{}][^#\[\]{}]*?)\s*:\s*\[(?P<pair>[^\]]*)\]"""
)
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TENGINE = re.compile(rf"(?P<name>\S.*?)\s+(?P<scale>{_NUMBER})\s+(?P<zero>-?\d+)")
_MACE = re.compile(rf"(?P<name>.+)@@(?P<low>{_NUMBER}),(?P<high>{_NUMBER})")


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a file to be written has by its name: ``.scale`` is Tengine's, ``.range`` MACE's."""
    return {".scale": "tengine", ".range": "mace"}.get(PurePath(path).suffix, "yaml")


def read_ranges(path: str | os.PathLike[str], scheme: Scheme) -> Ranges:
    """The ranges of a file of any format, which is recognised by content.

    A Tengine table has scales: their ranges are those of the integers of ``scheme``.  Raises InputError that names the
    line for a damaged file.
    """
    text = read_regular(Path(path)).decode("utf-8", "replace")
    name = os.fspath(path)
    if re.match(r"(?:---\s*)?GlowToolsVersion:", text.lstrip()):
        profile = glow_profile.parse(text, name).ranges
        return {tensor.removesuffix(":0"): (each.least, each.greatest) for tensor, each in profile.items()}
    ranges: Ranges = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() in ("---", "..."):
            continue
        tensor, low, high = _line(line.strip(), f"{name}:{number}", scheme)
        if not low <= high or not (math.isfinite(low) and math.isfinite(high)):
            raise InputError(f"{name}:{number}: the range of '{tensor}' is {low:g} to {high:g}: write the lesser first")
        ranges[tensor] = low, high
    if not ranges:
        raise InputError(f"{name}: there are no ranges in it")
    return ranges


def _line(line: str, where: str, scheme: Scheme) -> tuple[str, float, float]:
    if match := _MACE.fullmatch(line):
        return match["name"], float(match["low"]), float(match["high"])
    if match := _YAML.fullmatch(line.partition(" #")[0].rstrip()):
        try:
            low, high = (float(word) for word in match["pair"].split(","))
        except ValueError:
            raise InputError(f"{where}: '{match['pair']}' is no range: write [least, greatest]") from None
        return _unquoted(match["name"]), low, high
    if match := _TENGINE.fullmatch(line):
        least, most = limits(scheme.activations)
        scale, zero = float(match["scale"]), int(match["zero"])
        if least < 0 and not zero:
            least = -most  # symmetric integers leave out the least one
        if not least <= zero <= most or scale <= 0:
            raise InputError(f"{where}: scale {scale:g} and zero point {zero} are none of {scheme.activations}")
        return match["name"], (least - zero) * scale, (most - zero) * scale
    raise InputError(
        f"{where}: '{line[:60]}' is no range: write 'tensor: [least, greatest]', 'tensor@@least,greatest' or "
        "'tensor scale zero_point'"
    )


def _unquoted(name: str) -> str:
    if name.startswith('"'):
        return str(json.loads(name))
    return name[1:-1].replace("''", "'") if name.startswith("'") else name


def write_ranges(
    path: str | os.PathLike[str], ranges: Mapping[str, tuple[float, float]], scheme: Scheme, form: str = ""
) -> None:
    """Write a file that ``read_ranges`` and the tool that ``form`` (of ``FORMATS``; by the name if empty) is named
    after can read.  Raises InputError."""
    form = form or format_of(path)
    if form not in FORMATS:
        raise InputError(f"there is no format '{form}' of ranges: choose one of {', '.join(FORMATS)}")
    write(path, ranges_text(ranges, scheme, form), "the ranges")


def ranges_text(ranges: Mapping[str, tuple[float, float]], scheme: Scheme, form: str) -> str:
    """The content of a file of a format."""
    if form == "glow":
        profile = glow_profile.GlowProfile(0, bins=1)
        profile.ranges = {f"{name}:0": glow_profile.GlowRange(*pair, [0.0]) for name, pair in ranges.items()}
        return profile.text()
    return "".join(f"{_text(name, *pair, scheme, form)}\n" for name, pair in ranges.items())


def _text(name: str, low: float, high: float, scheme: Scheme, form: str) -> str:
    if form == "tengine":
        grid = scheme.activation_grid(low, high)
        return f"{name} {float(grid.scale.reshape(())):f} {int(grid.zero.reshape(()))}"
    if form == "mace":
        return f"{name}@@{low!r},{high!r}"
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", name) is not None
    return f"{name if plain else json.dumps(name)}: [{low!r}, {high!r}]"
