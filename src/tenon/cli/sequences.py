"""Sequences for networks with states: a run for each element of an input that has one axis more than the network's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import Engine

if TYPE_CHECKING:
    from tenon.runtime.engine.device import RemoteBundle


def length(engine: Engine | RemoteBundle, feeds: Mapping[str, Array]) -> int | None:
    """The number of runs for these feeds; None where they are those of one run.

    Raises InputError for sequences of different lengths, and for one of no elements.
    """
    tensors = engine.manifest.own_inputs
    if not any(tensor.state for tensor in tensors):
        return None
    ranks = {tensor.name: len(tensor.shape) for tensor in tensors if not tensor.state}
    lengths = {name: len(a) for name, a in feeds.items() if a.ndim == ranks.get(name, -1) + 1}
    if not lengths:
        return None
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        listed = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise InputError(f"--input: sequences have one length, and at least one element: {listed}")
    return next(iter(lengths.values()))


def run_sequence(engine: Engine | RemoteBundle, feeds: Mapping[str, Array], count: int) -> dict[str, Array]:
    """The outputs of ``count`` runs with one more axis in front, and what the states hold after the last one.

    Inputs that have no further axis are the same in all runs; a state that is fed begins with that.
    """
    tensors = engine.manifest.own_inputs
    kept = {t.name: t.state for t in tensors if t.state}
    ranks = {t.name: len(t.shape) for t in tensors}
    states = {name: array for name, array in feeds.items() if name in kept}
    runs = list[dict[str, Array]]()
    for i in range(count):
        each = {name: a[i] if a.ndim > ranks[name] else a for name, a in feeds.items() if name not in kept}
        given = {**each, **states}
        runs.append(engine.run(given) if isinstance(engine, Engine) else engine.run([given])[0])
        states = {} if isinstance(engine, Engine) else {name: runs[-1][after] for name, after in kept.items()}
    following = set(kept.values())
    return {name: a if name in following else np.stack([r[name] for r in runs]) for name, a in runs[-1].items()}
