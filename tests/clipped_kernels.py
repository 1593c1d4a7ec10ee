"""Operators of whose results only the first positions are needed: their kernels, proved as those of networks are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowered import fresh, packed, run_steps
from tenon.machine.plan.clip import clip
from tenon.machine.proofs.bounds import prove
from tenon.machine.proofs.needed import prove_needed
from tenon.network.graph.graph import Array
from tenon.network.ops.base import Site, Step
from tenon.network.ops.clipped import Clipped


@dataclass(frozen=True)
class ProvedClipped(Clipped):
    """The operator, with its kernels cut short and proved as a planned network's are."""

    def lower(self, site: Site) -> list[Step]:
        steps = []
        for step in super().lower(site):
            types = [t for t in site.inputs[: self.count] if t is not None] if self.absorbed else []
            kernel, args, cut = clip(self, types, site.outputs, step.kernel, step.args, narrow=True)
            prove(kernel)
            if cut is not None:
                prove_needed(kernel, cut)
            steps.append(Step(kernel, args))
        return steps


def results(op: Any, site: Site, arrays: list[Array | None]) -> Array:
    """The first result of an operator whose layouts are settled."""
    inputs = [None if a is None else packed(site.input(i), a) for i, a in enumerate(arrays)]
    outputs = [fresh(t) for t in site.outputs]
    run_steps(op, site, inputs, outputs)
    return site.output.layout.unpack(outputs[0].view(site.output.dtype.numpy), site.output.dims)
