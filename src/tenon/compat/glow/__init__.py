"""Glow's ahead-of-time compiler: its commands, options and bundles, over Tenon's public API."""

from __future__ import annotations

from tenon.compat.glow.bundle import GlowBundle, bundle_of

__all__ = ["GlowBundle", "bundle_of"]
