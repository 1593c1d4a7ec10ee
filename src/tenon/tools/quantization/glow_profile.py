"""Ranges and histograms of tensors, in the YAML of Glow's ``-dump-profile`` (``lib/Quantization/Serialization.cpp``).

A file has three documents: the version, a hash of the graph, and a list with an entry for every tensor.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from tenon import __version__
from tenon.errors import InputError
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.text import show

_ENTRY = re.compile(
    r"- NodeOutputName:\s*(?P<name>.+?)\s*\n\s+Min:\s*(?P<min>\S+)\s*\n\s+Max:\s*(?P<max>\S+)\s*\n"
    r"\s+Histogram:\s*\[(?P<bins>[^\]]*)\]\s*"
)


@dataclass
class GlowRange:
    """Least and greatest value of a tensor, and how many values fell into each of the bins between them."""

    least: float
    greatest: float
    histogram: list[float]


@dataclass
class GlowProfile:
    """The ranges of a graph's tensors, by ``<name>:0``."""

    graph_hash: int
    bins: int = 10
    version: str = f"Tenon {__version__}"
    ranges: dict[str, GlowRange] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, bins: int = 10) -> GlowProfile:
        """An empty profile of a graph.  Raises InputError for fewer than 1 bin."""
        if bins < 1:
            raise InputError(f"-num-histogram-bins={bins}: at least 1 is needed")
        return cls(graph_hash(graph), bins)

    def add(self, tensors: Mapping[str, Array]) -> None:
        """Widen the ranges by the values of tensors; bins of an older range are spread over the new one."""
        for name, array in tensors.items():
            values = array.astype(np.float64).reshape(-1)
            values = values[np.isfinite(values)]
            if not values.size:
                continue
            old = self.ranges.get(name)
            least, greatest = float(values.min()), float(values.max())
            if old is not None:
                least, greatest = min(least, old.least), max(greatest, old.greatest)
            counts = np.histogram(values, self.bins, (least, greatest))[0].astype(np.float64)
            if old is not None:
                centres = old.least + (np.arange(self.bins) + 0.5) * (old.greatest - old.least) / self.bins
                counts += np.histogram(centres, self.bins, (least, greatest), weights=np.array(old.histogram))[0]
            self.ranges[name] = GlowRange(least, greatest, counts.tolist())

    def text(self) -> str:
        """The file."""
        lines = [
            "---",
            f"GlowToolsVersion: {self.version}",
            "...",
            "---",
            f"GraphPreLowerHash: 0x{self.graph_hash:016X}",
            "...",
            "---",
        ]
        for name, span in sorted(self.ranges.items()):
            lines += [
                f"- NodeOutputName: {_scalar(name)}",
                f"  Min:             {_decimal(span.least)}",
                f"  Max:             {_decimal(span.greatest)}",
                f"  Histogram:       [ {', '.join(map(_decimal, span.histogram))} ]",
            ]
        return "\n".join([*lines, "...", ""])


def parse(text: str, file: str) -> GlowProfile:
    """The content of a profile.  Raises InputError for a document or key that is missing, and for Min above Max."""
    documents = [part.strip("\n") for part in re.split(r"(?m)^(?:---|\.\.\.)\s*$", text) if part.strip()]
    version, hashed = (
        re.fullmatch(rf"{key}:\s*(.+?)\s*", documents[i]) if len(documents) > i else None
        for i, key in enumerate(("GlowToolsVersion", "GraphPreLowerHash"))
    )
    if version is None or hashed is None or len(documents) != 3:
        raise InputError(f"{file}: no profile: it needs three documents: version, hash of the graph, tensors")
    profile, at, body = GlowProfile(int(hashed[1], 16), version=version[1]), 0, documents[2] + "\n"
    while at < len(body):
        entry = _ENTRY.match(body, at)
        if entry is None:
            line = body[at:].splitlines()[0]
            raise InputError(f"{file}: damaged at '{line}': an entry has NodeOutputName, Min, Max and Histogram")
        name = json.loads(entry["name"]) if entry["name"].startswith('"') else entry["name"].strip("'")
        span = GlowRange(float(entry["min"]), float(entry["max"]), [float(v) for v in entry["bins"].split(",")])
        if not span.least <= span.greatest:
            raise InputError(f"{file}: Min of '{name}' is above its Max")
        profile.ranges[name], profile.bins = span, len(span.histogram)
        at = entry.end()
    return profile


def graph_hash(graph: Graph) -> int:
    """64 bits that depend on the operators, shapes and connections of a graph."""
    return int.from_bytes(blake2b(show(graph).encode(), digest_size=8).digest(), "big")


def _scalar(name: str) -> str:
    """A string of YAML; quoted if it could be read as something else."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./:-]*(?<!:)", name) else json.dumps(name)


def _decimal(value: float) -> str:
    """A number without an exponent."""
    if not math.isfinite(value):
        raise ValueError(value)
    return np.format_float_positional(value, trim="-") if value != int(value) else str(int(value))
