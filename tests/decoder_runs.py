"""Runs of a decoder's graph, piece by piece, by the references of its operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gguf_models import VOCABULARY
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph

TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, VOCABULARY, 14)]
CHUNK, ROOM = 8, 24
SIZES = {"length": f"1..{CHUNK}", "past": f"0..{ROOM - CHUNK}"}


def last_logits(graph: Graph, tokens: Sequence[int]) -> Array:
    """The logits after tokens that are given in runs of at most ``CHUNK``."""
    state = {v.name: np.zeros(v.type.dims, v.type.dtype.numpy) for v in graph.inputs}
    result = np.zeros(0, np.float32)
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        state["tokens"][0, : len(part)] = part
        outputs = evaluate(graph, {**state, "length": np.array(len(part)), "past": np.array(start)})
        state |= {name: outputs[name.replace("past_key_values", "present")] for name in state if "values" in name}
        result = outputs["logits"][0, -1]
    return result
