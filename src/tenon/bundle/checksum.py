"""Checksums of a bundle's files."""

from __future__ import annotations

import importlib
from typing import Any

LITTLE = 1 << 20
"""Bytes.  Python's own SHA-256 has hashed that many before the fast one of OpenSSL is loaded."""


def sha256(content: bytes | memoryview) -> str:
    """In hexadecimal digits."""
    digest: str = _implementation(len(content)).sha256(content).hexdigest()
    return digest


def _implementation(size: int) -> Any:
    for name in ("_sha2", "_sha256") if size <= LITTLE else ():
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module("hashlib")
