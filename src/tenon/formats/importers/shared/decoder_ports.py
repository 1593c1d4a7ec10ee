"""The inputs and outputs of an imported graph that hold tokens, logits and caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tenon.formats.importers.shared.text_files import settings_beside
from tenon.network.graph.graph import Graph
from tenon.network.graph.text_model import TextModel

_TOKENS = ("input_ids", "tokens", "decoder_input_ids")
_LOGITS = ("logits",)
_CACHES = ("past_key_values", "past_key", "past_0", "past.")


def text_settings(graph: Graph, folder: Path | None) -> TextModel | None:
    """The settings of a graph that takes tokens, by the names of its inputs and outputs, and of its tokenizer in
    ``folder``; None for other graphs."""
    inputs, outputs = [v.name for v in graph.inputs], [v.name for v in graph.outputs]
    tokens = next((name for name in _TOKENS if name in inputs), None)
    if tokens is None:
        return None
    ports = {"tokens": tokens}
    logits = next((name for name in _LOGITS if name in outputs), None)
    caches = any(name.startswith(_CACHES) for name in inputs)
    if logits is not None and caches:
        model = TextModel("decoder", ports={**ports, "logits": logits})
    else:
        model = TextModel("encoder", ports=ports)
    settings = settings_beside(folder) if folder is not None else None
    if settings is None:
        return model if model.kind == "decoder" else None
    return replace(settings, kind=model.kind, ports=model.ports)
