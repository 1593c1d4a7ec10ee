"""A release as MACE packs one: headers, libraries and the model's files."""

from __future__ import annotations

from tenon.runtime.bundle.manifest import shared_library
from tenon.runtime.bundle.packages.contents import Contents


def tar(contents: Contents) -> dict[str, bytes]:
    """``include``, ``lib`` and ``model``."""
    name = contents.name
    shared = {f"lib/{shared_library(name)}": contents.library()} if contents.library else {}
    return {
        **contents.headers("include/"),
        f"lib/lib{name}.a": contents.archive(),
        **shared,
        f"model/{name}.weights.bin": contents.weights,
        "model/manifest.json": contents.manifest().encode(),
    }
