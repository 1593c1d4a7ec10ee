"""Bundles: header, code, weights and manifest, in memory and on disk.

Names are resolved on first use, so that opening a bundle does not import what creates one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenon.runtime.bundle.manifest import Manifest as Manifest
    from tenon.runtime.bundle.manifest import SourceRecord as SourceRecord
    from tenon.runtime.bundle.manifest import Tuned as Tuned
    from tenon.runtime.bundle.manifest import read_manifest as read_manifest
    from tenon.runtime.bundle.writer import Bundle as Bundle

_HOMES = {
    "Bundle": "tenon.runtime.bundle.writer",
    "Manifest": "tenon.runtime.bundle.manifest",
    "SourceRecord": "tenon.runtime.bundle.manifest",
    "Tuned": "tenon.runtime.bundle.manifest",
    "read_manifest": "tenon.runtime.bundle.manifest",
}
__all__ = ["Bundle", "Manifest", "SourceRecord", "Tuned", "read_manifest"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tenon.runtime.bundle' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
