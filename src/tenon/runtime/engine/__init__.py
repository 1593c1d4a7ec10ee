"""Run bundles from Python."""

from tenon.runtime.engine.engine import Engine, open_bundle

__all__ = ["Engine", "open_bundle"]
