"""Graph to graph, independent of the target.  ``PIPELINE`` is the order; ``optimize`` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tenon.network.graph.graph import Graph
from tenon.network.graph.verify import verify as check
from tenon.network.passes.affine import DECOMPOSE, FOLD
from tenon.network.passes.attention import attention_of as attention_of
from tenon.network.passes.base import Log, Pass, Passed, run, silent, unseen
from tenon.network.passes.branches import KNOWN_BRANCHES
from tenon.network.passes.canonicalize import COMMON, CONSTANTS, DEAD, IDENTITIES, MOVES
from tenon.network.passes.channels import CHANNELS
from tenon.network.passes.fuse import FUSE
from tenon.network.passes.idioms import IDIOMS
from tenon.network.passes.image_products import IMAGE_PRODUCTS
from tenon.network.passes.integer_sums import INTEGER_SUMS
from tenon.network.passes.legalize import GENERALIZE, LOOP_NESTS
from tenon.network.passes.padding import PADDING
from tenon.network.passes.separable import SEPARABLE
from tenon.network.passes.shuffle import SHUFFLE
from tenon.network.passes.transposes import TRANSPOSES

if TYPE_CHECKING:
    from tenon.network.passes.validate import Validator

PIPELINE: list[Pass] = [
    DEAD,
    CONSTANTS,
    KNOWN_BRANCHES,
    IDENTITIES,
    MOVES,
    COMMON,
    TRANSPOSES,
    IMAGE_PRODUCTS,
    IDIOMS,
    PADDING,
    FOLD,
    GENERALIZE,
    DECOMPOSE,
    FOLD,
    CONSTANTS,
    IDENTITIES,
    MOVES,
    COMMON,
    CHANNELS,
    INTEGER_SUMS,
    LOOP_NESTS,
    FUSE,
    SEPARABLE,
    SHUFFLE,
    COMMON,
    DEAD,
]
"""Passes in order. Idioms are matched before anything is folded into their constants; normalisations that are not
folded into a convolution become scales and shifts, so these are folded once more.
"""


def optimize(
    graph: Graph,
    verify: bool = False,
    level: int = 2,
    log: Log = silent,
    *,
    passed: Passed = unseen,
    first: Sequence[Pass] = (),
    narrow: Sequence[Pass] = (),
    pairs: Pass = SEPARABLE,
    fuse: bool = True,
    failures: Path | None = None,
) -> Graph:
    """Run the pipeline on ``graph``, which is changed and returned.

    Bodies of nodes are graphs of their own: each is optimised in the same way, before the graph that it is in, but for
    the choices that need not be made.

    Level 0 does only what lowering requires, 1 cleans up, 2 also folds and fuses.  ``first`` are passes that run before
    all others.  ``narrow`` are passes that change element types (see ``passes.precision``); they run before operators
    are fused.  ``pairs`` is the pass that joins depthwise and 1x1 convolutions.  Without ``fuse`` the pipeline ends
    before that, with a graph of ONNX's own operators.
    ``verify`` checks the graph before, and after every pass.  With ``failures``, a folder, the result of every pass is
    compared with what it was given, and a model that a pass is wrong on is written there (see ``passes.validate``).
    ``log`` gets a line per pass that changed something and per rule that declined; ``passed`` is called after each
    pass that ran.
    Raises InternalError, naming the pass or the rule and the node, if one fails.
    """
    for step in first:
        if step.level <= level:
            passed(step.name, graph, run(graph, step, log, verify=verify))
    if level >= KNOWN_BRANCHES.level:
        run(graph, KNOWN_BRANCHES, log)
    for body in [body for node in graph for body in node.bodies]:
        optimize(body, verify, level, log, passed=passed, narrow=narrow, pairs=pairs, fuse=fuse, failures=failures)
    if verify:
        check(graph, "import")
    at = PIPELINE.index(INTEGER_SUMS)
    validator = None if failures is None else _validator(graph, failures)
    for listed in (*PIPELINE[:at], *narrow, *(PIPELINE[at:] if fuse else [DEAD])):
        step = pairs if listed is SEPARABLE else listed
        if step.level > level:
            continue
        changes = run(graph, step, log, verify=verify)
        passed(step.name, graph, changes)
        if changes and validator:
            validator.check(step, graph, rounds=step in narrow)
    return graph


def _validator(graph: Graph, folder: Path) -> Validator:
    from tenon.network.passes.validate import Validator

    return Validator(graph, folder)
