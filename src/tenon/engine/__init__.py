"""Call a bundle from Python: on this machine, or on another one that an emulator plays."""

from tenon.engine.engine import Engine, open_bundle

__all__ = ["Engine", "open_bundle"]
