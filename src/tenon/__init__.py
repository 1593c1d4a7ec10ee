"""Tenon: a trained network in, a standalone bundle of code and weights out.

    import tenon

    bundle = tenon.compile("model.onnx")          # or tenon.compile(tenon.load("model.onnx"))
    bundle.save("out/")
    engine = tenon.open("out/")
    answer = engine.run({"input": array})

Names are resolved on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenon.bundle import Bundle as Bundle
    from tenon.engine import Engine as Engine
    from tenon.engine import open_bundle
    from tenon.engine.detect import detect as detect
    from tenon.errors import TenonError as TenonError
    from tenon.ir.graph import Graph as Graph
    from tenon.options import Options as Options
    from tenon.pipeline import compile as compile
    from tenon.pipeline import inspect as inspect
    from tenon.pipeline import load as load
    from tenon.targets import targets as targets

    open = open_bundle

__version__ = "0.1.0"

_HOMES = {
    "Bundle": "tenon.bundle",
    "Engine": "tenon.engine",
    "Graph": "tenon.ir.graph",
    "Options": "tenon.options",
    "TenonError": "tenon.errors",
    "compile": "tenon.pipeline",
    "detect": "tenon.engine.detect",
    "inspect": "tenon.pipeline",
    "load": "tenon.pipeline",
    "open": "tenon.engine:open_bundle",
    "targets": "tenon.targets:",
}
"""Where each public name is: a module, with ``:name`` where it has another name there; a colon alone is the module."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tenon' has no attribute '{name}'")
    home, colon, there = _HOMES[name].partition(":")
    module = import_module(home)
    return module if colon and not there else getattr(module, there or name)


def __dir__() -> list[str]:
    return sorted(__all__)
