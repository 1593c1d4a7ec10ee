"""Tenon compiles trained neural networks to standalone bundles of C code and weights.

    import tenon

    bundle = tenon.compile("model.onnx")          # or tenon.compile(tenon.load("model.onnx"))
    bundle.save("out/")
    engine = tenon.open("out/")
    answer = engine.run({"input": array})

Names are resolved on first use, so importing the package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenon.bundle import Bundle as Bundle
    from tenon.compat.compilation import compile as compile
    from tenon.deployment import convert as convert
    from tenon.deployment import evaluate as evaluate
    from tenon.deployment import read_deployment as read_deployment
    from tenon.engine import Engine as Engine
    from tenon.engine import open_bundle
    from tenon.engine.detect import detect as detect
    from tenon.errors import TenonError as TenonError
    from tenon.ir.graph import Graph as Graph
    from tenon.options import Options as Options
    from tenon.pipeline import inspect as inspect
    from tenon.pipeline import load as load
    from tenon.quantization import quantize as quantize
    from tenon.targets import targets as targets

    open = open_bundle

__version__ = "0.1.0"

_HOMES = {
    "Bundle": "tenon.bundle",
    "Engine": "tenon.engine",
    "Graph": "tenon.ir.graph",
    "Options": "tenon.options",
    "TenonError": "tenon.errors",
    "compile": "tenon.compat.compilation",
    "convert": "tenon.deployment",
    "detect": "tenon.engine.detect",
    "evaluate": "tenon.deployment",
    "inspect": "tenon.pipeline",
    "load": "tenon.pipeline",
    "open": "tenon.engine:open_bundle",
    "quantize": "tenon.quantization",
    "read_deployment": "tenon.deployment",
    "targets": "tenon.targets:",
}
"""The module of each public name; ``module:name`` if it has another name there, ``module:`` for the module itself."""

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tenon' has no attribute '{name}'")
    module_name, colon, attribute = _HOMES[name].partition(":")
    module = import_module(module_name)
    return module if colon and not attribute else getattr(module, attribute or name)


def __dir__() -> list[str]:
    return sorted(__all__)
