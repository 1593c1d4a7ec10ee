"""PyTorch: .pt2 archives; modules and exported programs where torch is installed."""

from __future__ import annotations


def is_torch(model: object) -> bool:
    """Whether a model is a module or an exported program of torch, without importing it."""
    kinds = type(model).__mro__
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}
    return bool(names & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"})
