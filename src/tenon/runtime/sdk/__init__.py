"""libtenon, the C library that runs bundles, built for a target with its headers and the files of build systems."""

from __future__ import annotations

from tenon.runtime.sdk.folder import save_sdk

__all__ = ["save_sdk"]
