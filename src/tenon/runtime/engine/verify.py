"""Verify the digest of a bundle's outputs for the fixed input against its manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tenon.network.graph.dtype import Array, DType
from tenon.network.graph.fixed_input import answer_digest, fixed_input
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.runtime.engine.sizes import largest

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Verdict:
    """``expected`` is empty if the manifest states no digest, because the network rounds floats."""

    digest: str
    expected: str

    @property
    def right(self) -> bool:
        return not self.expected or self.digest == self.expected


def fixed_feeds(inputs: Sequence[BundleTensor]) -> dict[str, Array]:
    """The fixed input, with the largest sizes."""
    return {t.name: fixed_input(DType(t.dtype), t.shape, i) for i, t in enumerate(inputs)} | largest(inputs)


def verify(manifest: Manifest, run: Run) -> Verdict:
    """Run a bundle once on the fixed input."""
    answers = run(fixed_feeds(manifest.own_inputs))
    return Verdict(answer_digest(answers[t.name] for t in manifest.outputs), manifest.answer)
