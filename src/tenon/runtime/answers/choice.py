"""The choice of the head that decodes a bundle's outputs."""

from __future__ import annotations

from tenon.runtime.answers.base import Head
from tenon.runtime.answers.description import described_head
from tenon.runtime.answers.registry import heads
from tenon.runtime.bundle.manifest import Manifest


def head_for(manifest: Manifest, labels: int) -> Head | None:
    """The head that the bundle states, or else the one whose shapes its inputs and outputs have; None if there is
    none.  ``labels`` is the number of class names that are known."""
    if manifest.decoding:
        return described_head(manifest.decoding, manifest.outputs)
    candidates = (kind.recognise(manifest, labels) for kind in heads().values())
    return next((head for head in candidates if head is not None), None)
