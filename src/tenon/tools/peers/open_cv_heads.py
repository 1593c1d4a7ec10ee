"""Darknet's detection layers in OpenCV, whose rows become the outputs that Darknet networks have here: Darknet's own
result of each head, then ``boxes`` and ``scores`` of all heads (``importers.darknet.heads``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array

_SECTION = re.compile(rb"^\s*\[(\w+)\]", re.MULTILINE)
_THRESHOLD = re.compile(rb"^\s*thresh\s*=.*$", re.MULTILINE)


def without_threshold(cfg: bytes) -> bytes:
    """The .cfg with heads that give boxes of every score; OpenCV sets scores below ``thresh`` (0.2) to 0."""
    begins = [*(header.start() for header in _SECTION.finditer(cfg)), len(cfg)]
    parts = [cfg[: begins[0]]]
    for begin, end in pairwise(begins):
        part = cfg[begin:end]
        header = _SECTION.match(part)
        if header and header[1] in (b"yolo", b"region"):
            head, rest = part[: header.end()], _THRESHOLD.sub(b"", part[header.end() :])
            part = head + b"\nthresh=0" + rest
        parts.append(part)
    return b"".join(parts)


class DetectionHeads:
    """The heads ``ends`` of a network in OpenCV, and the layers before them, whose results Darknet's are made of."""

    def __init__(self, net: Any, ends: Sequence[str]) -> None:
        names = list(net.getLayerNames())
        self.layers = [*ends, *(names[names.index(end) - 1] for end in ends)]
        self._count = len(ends)

    def outputs(self, results: Sequence[Array]) -> list[Array]:
        """Darknet's results of the heads, boxes, scores; ``results`` are those of ``layers``."""
        rows, before = results[: self._count], results[self._count :]
        raw = [_raw(listed, inputs) for listed, inputs in zip(rows, before, strict=True)]
        every = np.concatenate([listed.reshape(-1, listed.shape[-1]) for listed in rows])
        centre, half = every[:, :2], every[:, 2:4] / 2
        boxes = np.concatenate([centre - half, centre + half], axis=1)
        return [*raw, boxes[None], every[None, :, 5:]]


def _raw(rows: Array, before: Array) -> Array:
    """Positions in cells, sizes as the layer before has them, objectness and probabilities [1, anchors * numbers,
    height, width]; ``rows`` have centre, size, objectness and scores of each box, ``before`` [1, height, width,
    channels]."""
    _, height, width, channels = before.shape
    listed = rows.reshape(height, width, -1, rows.shape[-1])
    inputs = before.reshape(height, width, -1, rows.shape[-1])
    x = listed[..., 0] * width - np.arange(width)[:, None]
    y = listed[..., 1] * height - np.arange(height)[:, None, None]
    objectness = listed[..., 4:5]
    probabilities = listed[..., 5:] / np.maximum(objectness, np.finfo(np.float32).tiny)
    joined = np.concatenate([x[..., None], y[..., None], inputs[..., 2:4], objectness, probabilities], axis=-1)
    return joined.reshape(1, height, width, channels).transpose(0, 3, 1, 2)
