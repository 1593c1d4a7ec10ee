"""A digest by which a board is asked whether it has the network of a bundle."""

from __future__ import annotations

import hashlib

from tenon.runtime.bundle.layout import layout
from tenon.runtime.bundle.manifest import Manifest


def network_digest(manifest: Manifest, weights: bytes) -> bytes:
    """SHA-256 (32 bytes) of a bundle's target, memory, tensors, kernels and weights: what its answers depend on.

    It is the same for a bundle in memory and on disk, and for compilers of the C code that differ.
    """
    lines = [
        manifest.name,
        manifest.target.name,
        manifest.arithmetic,
        layout(manifest, quantised=True),
        *(step.kernel for step in manifest.nodes),
    ]
    return hashlib.sha256("\n".join(lines).encode() + b"\0" + weights).digest()
