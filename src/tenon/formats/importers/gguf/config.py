"""The sizes and variants of a decoder, from the keys of a GGUF file.

Source: docs/gguf.md of ggml, and what llama.cpp computes for these architectures where keys do not say it: which
elements rotary embeddings pair, the scale of scores, which layers have a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tenon.formats.decompositions.decoder.config import DecoderConfig, ExpertChoice, Layer, Rope
from tenon.formats.decompositions.decoder.layers import Pooling
from tenon.formats.decompositions.decoder.rope_scaling import yarn_factors, yarn_magnitude
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.gguf.metadata import Metadata
from tenon.network.graph.graph import Array

Factors = Callable[[str], Array | None]
"""The elements of a tensor of the file by its name, without ".weight"."""


@dataclass(frozen=True)
class Architecture:
    """The properties that all files of an architecture share.

    ``interleaved``: rotary embeddings turn neighbours; ``period``: how many layers there are for one without a window;
    ``unturned``: how many for one without a rotary embedding; ``embedding``: embeddings are multiplied by the root of
    their width; ``scaled``: the file has factors of embeddings, scores, logits and what layers add; ``plain``: rotary
    embeddings of layers with a window are not scaled, and have the base ``near`` (0: that of other layers);
    ``weighted``: the factors of the experts that a token takes are parts of those of all, which add up to 1.
    """

    interleaved: bool = False
    activation: str = "silu"
    norm: str = "rms"
    period: int = 0
    unturned: int = 0
    embedding: bool = False
    scaled: bool = False
    plain: bool = False
    near: float = 0.0
    weighted: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(interleaved=True),
    "smollm3": Architecture(interleaved=True, unturned=4),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "phi3": Architecture(),
    "gemma": Architecture(activation="gelu_tanh", embedding=True),
    "gemma2": Architecture(activation="gelu_tanh", embedding=True, period=2),
    "gemma3": Architecture(activation="gelu_tanh", embedding=True, period=6, plain=True, near=10000.0),
    "olmo2": Architecture(period=4, plain=True),
    "granite": Architecture(interleaved=True, scaled=True),
    "stablelm": Architecture(norm="layer"),
    "qwen2moe": Architecture(weighted=True),
    "qwen3moe": Architecture(),
    "olmoe": Architecture(weighted=True),
    "granitemoe": Architecture(interleaved=True, scaled=True),
}
"""Architectures by the name in files."""

_WIDE_HEADS = {("gemma2", 46), ("gemma3", 62)}
"""Models whose scores are scaled by the width over the heads: the 27 B ones, by their layers."""


_POOLINGS: Mapping[int, Pooling | None] = {0: None, 1: "mean", 2: "first", 3: "last"}
"""How states become the embedding of a text, by the number that the key pooling_type has; 0: not at all."""


def stated_pooling(m: Metadata) -> Pooling | None:
    """How states become the embedding of a text; None if the file does not say.  Raises RefusedError for other ways."""
    number = m.get("pooling_type")
    if number is not None and number not in _POOLINGS:
        raise RefusedError(f"pools states by the way {number}, which is not known", "rerankers are not supported")
    return None if number is None else _POOLINGS[number]


def pooling_of(m: Metadata) -> Pooling | None:
    """How a decoder that embeds texts makes a vector of states; None for one that predicts tokens.

    Raises RefusedError for another way, and for a network whose tokens see those behind them.
    """
    pooling = stated_pooling(m)
    if m.get("attention.causal") is False:
        raise RefusedError("tokens see those behind them, which is not supported")
    return pooling


def decoder_config(m: Metadata, factors: Factors, room: int) -> DecoderConfig:
    """The sizes and variants, for a cache of ``room`` tokens.

    Raises RefusedError for what is not supported, FormatError for impossible sizes.
    """
    if m.architecture not in ARCHITECTURES:
        what = "this architecture is not supported"
        raise RefusedError(what, f"{', '.join(ARCHITECTURES)} are")
    a = ARCHITECTURES[m.architecture]
    hidden, heads, count = m.size("embedding_length"), m.size("attention.head_count"), m.size("block_count")
    depth = m.size("attention.key_length", hidden // heads)
    if m.size("attention.value_length", depth) != depth:
        raise RefusedError("keys and values of different sizes are not supported")
    config = DecoderConfig(
        m.architecture,
        hidden,
        heads,
        m.size("attention.head_count_kv", heads),
        depth,
        m.size("context_length", 2048),
        norm=a.norm,
        epsilon=m.number("attention.layer_norm_rms_epsilon", m.number("attention.layer_norm_epsilon", 1e-5)),
        activation=a.activation,
        scale=1 / math.sqrt(hidden / heads) if (m.architecture, count) in _WIDE_HEADS else 0.0,
        embedding_scale=math.sqrt(hidden) if a.embedding else 1.0,
        attention_softcap=m.number("attn_logit_softcapping", 50.0 if m.architecture == "gemma2" else 0.0),
        logit_softcap=m.number("final_logit_softcapping", 30.0 if m.architecture == "gemma2" else 0.0),
    )
    if m.get("expert_count"):
        config = replace(config, mixture=_mixture(m, a))
    if a.scaled:
        config = replace(
            config,
            scale=m.number("attention.scale", 0.0),
            embedding_scale=m.number("embedding_scale", 1.0) or 1.0,
            residual_scale=m.number("residual_scale", 1.0) or 1.0,
            logit_scale=1 / (m.number("logit_scale", 1.0) or 1.0),
        )
    return replace(config, layers=_layers(m, a, config, (count, room), factors))


def _mixture(m: Metadata, a: Architecture) -> ExpertChoice:
    """How tokens choose experts."""
    normalised = m.get("expert_weights_norm")
    if m.get("expert_gating_func") not in (None, 0, 1) or m.number("expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise RefusedError("experts chosen by other factors than a softmax of their scores are not supported")
    if normalised is None:
        normalised = not a.weighted
    return ExpertChoice(m.size("expert_used_count"), normalised=bool(normalised))


def _layers(
    m: Metadata, a: Architecture, config: DecoderConfig, sizes: tuple[int, int], factors: Factors
) -> tuple[Layer, ...]:
    """The layers: all have the window, or with a period all but the last of so many, and their own rotary embedding."""
    count, room = sizes
    rope = _rope(m, a, config, factors, room)
    window = m.size("attention.sliding_window", 4096 if m.architecture == "gemma2" else 0)
    near = rope
    if a.plain:
        base = m.number("rope.freq_base_swa", a.near or rope.base)
        near = replace(rope, base=base, linear=1.0, factors=None, magnitude=1.0)
    never = a.scaled and m.get("rope.scaling.finetuned") is False  # what llama.cpp takes for a model without positions
    layers = []
    for i in range(count):
        local = bool(window) and (not a.period or i % a.period < a.period - 1)
        turned = not never and (not a.unturned or (i + 1) % a.unturned)
        layers.append(Layer((near if local else rope) if turned else None, window if local else 0))
    return tuple(layers)


def _rope(m: Metadata, a: Architecture, config: DecoderConfig, factors: Factors, room: int) -> Rope:
    """The rotary embedding; its factors for long texts apply to caches with more room than the model began with."""
    dimensions = m.size("rope.dimension_count", config.depth)
    if dimensions > config.depth or dimensions % 2:
        raise RefusedError(f"turns {dimensions} of the {config.depth} elements of a head")
    rope = Rope(dimensions, m.number("rope.freq_base", 10000.0), interleaved=a.interleaved)
    kind, factor = m.text("rope.scaling.type", "none"), m.number("rope.scaling.factor", 1.0)
    if kind == "linear" or (kind == "none" and m.get("rope.scale_linear")):
        return replace(rope, linear=factor if kind == "linear" else m.number("rope.scale_linear", 1.0))
    original = m.size("rope.scaling.original_context_length", config.context)
    if kind == "yarn":
        ends = m.number("rope.scaling.yarn_beta_fast", 32.0), m.number("rope.scaling.yarn_beta_slow", 1.0)
        magnitude = m.number("rope.scaling.attn_factor", 1.0) * yarn_magnitude(factor)
        return replace(rope, factors=yarn_factors(rope, factor, original, *ends), magnitude=magnitude)
    if kind not in ("none", "longrope"):
        remedy = "none, linear, longrope and yarn are"
        raise RefusedError(f"rotary embeddings scaled by '{kind}' are not supported", remedy)
    own = factors("rope_freqs")
    if own is None:
        own = factors("rope_factors_long" if room > original else "rope_factors_short")
    if own is not None and own.size != dimensions // 2:
        raise RefusedError(f"has {own.size} factors for {dimensions // 2} frequencies")
    return replace(rope, factors=own, magnitude=m.number("rope.scaling.attn_factor", 1.0))
