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
    from tenon.compat.compilation import compile as compile
    from tenon.errors import TenonError as TenonError
    from tenon.machine.targets import targets as targets
    from tenon.network.graph.graph import Graph as Graph
    from tenon.network.graph.size_range import Size as Size
    from tenon.options import Options as Options
    from tenon.pipeline import inspect as inspect
    from tenon.pipeline import load as load
    from tenon.runtime.bundle import Bundle as Bundle
    from tenon.runtime.engine import Engine as Engine
    from tenon.runtime.engine import open_bundle
    from tenon.runtime.engine.detect import detect as detect
    from tenon.runtime.generation.generator import Generator as Generator
    from tenon.runtime.generation.generator import generate as generate
    from tenon.tools.deployment import convert as convert
    from tenon.tools.deployment import evaluate as evaluate
    from tenon.tools.deployment import read_deployment as read_deployment
    from tenon.tools.quantization import quantize as quantize

    open = open_bundle

__version__ = "0.1.0"

_HOMES = {
    "Bundle": "tenon.runtime.bundle",
    "Engine": "tenon.runtime.engine",
    "Generator": "tenon.runtime.generation.generator",
    "Graph": "tenon.network.graph.graph",
    "Options": "tenon.options",
    "Size": "tenon.network.graph.size_range",
    "TenonError": "tenon.errors",
    "compile": "tenon.compat.compilation",
    "convert": "tenon.tools.deployment",
    "detect": "tenon.runtime.engine.detect",
    "evaluate": "tenon.tools.deployment",
    "generate": "tenon.runtime.generation.generator",
    "inspect": "tenon.pipeline",
    "load": "tenon.pipeline",
    "open": "tenon.runtime.engine:open_bundle",
    "quantize": "tenon.tools.quantization",
    "read_deployment": "tenon.tools.deployment",
    "targets": "tenon.machine.targets:",
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
