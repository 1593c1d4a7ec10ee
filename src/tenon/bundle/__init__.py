"""What is handed over: header, code, weights and manifest, in memory and on disk."""

from tenon.bundle.manifest import Manifest, Origin, read_manifest
from tenon.bundle.writer import Bundle

__all__ = ["Bundle", "Manifest", "Origin", "read_manifest"]
