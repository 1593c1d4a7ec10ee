"""The targets for which the operators of conformance cases compile: imported, planned, proved and printed as C."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Sequence

import tenon
from conformance.cases import Conformance
from conformance.run import flat, imported, ports
from tenon.errors import TenonError
from tenon.machine.targets import find, targets

TARGETS = tuple(name for name, row in targets().items() if row.backend == "c")
"""Targets whose code is C; ``e2e/test_opencl.py`` has the operators of the other."""
_chosen: list[Conformance] = []


def machines() -> dict[str, list[str]]:
    """Targets grouped by equal machines, for which kernels are the same; the key is the first target of a group."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name in TARGETS:
        groups[find(name).machine].append(name)
    return {group[0]: group for group in groups.values()}


def lowered(cases: Sequence[Conformance], jobs: int) -> dict[str, tuple[str, ...]]:
    """The targets for which all of an operator's cases compile."""
    _chosen[:] = cases
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        supported = pool.map(_targets, range(len(cases)), chunksize=8)
    by_operator: dict[str, set[str]] = {}
    for case, names in zip(cases, supported, strict=True):
        by_operator[case.operator] = by_operator.get(case.operator, set(names)) & set(names)
    return {operator: tuple(t for t in TARGETS if t in names) for operator, names in by_operator.items()}


def _targets(i: int) -> list[str]:
    case = _chosen[i]
    inputs, _ = case.data[0]
    graph, _ = imported(case, flat(zip(ports(case.model)[0], inputs, strict=False)))
    supported = []
    for name, group in machines().items():
        try:
            tenon.compile(graph, target=name)
        except TenonError:
            continue
        supported += group
    return supported
