"""The sizes and variants of a decoder, from the ``config.json`` of the library transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.config import DecoderConfig, ExpertChoice, Layer, Rope
from tenon.formats.decompositions.decoder.rope_scaling import llama3_factors, yarn_factors, yarn_magnitude
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.safetensors.settings import ModelSettings


@dataclass(frozen=True)
class DecoderFamily:
    """The properties that models of a type share.

    ``added`` is what scales of normalisation lack; ``embedding``: embeddings are multiplied by the root of their
    width; ``period``: layers for one without a window where the settings do not list them; ``post_norms``: results of
    attention and of the gated layers are normalised; ``plain``: rotary embeddings of layers with a window are not
    scaled; ``chosen``: the experts that a token takes where the settings do not say it, 0 for models without experts;
    ``weighted``: their factors are parts of those of all, which add up to 1, unless the settings say otherwise.
    """

    norm: str = "rms"
    added: float = 0.0
    embedding: bool = False
    period: int = 0
    post_norms: bool = False
    plain: bool = False
    chosen: int = 0
    weighted: bool = False


GEMMA = DecoderFamily(added=1.0, embedding=True)
FAMILIES: Mapping[str, DecoderFamily] = {
    "llama": DecoderFamily(),
    "mistral": DecoderFamily(),
    "smollm3": DecoderFamily(),
    "granite": DecoderFamily(),
    "qwen2": DecoderFamily(),
    "qwen3": DecoderFamily(),
    "phi3": DecoderFamily(),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, period=2, post_norms=True),
    "gemma3_text": replace(GEMMA, period=6, post_norms=True),
    "olmo2": DecoderFamily(post_norms=True),
    "olmo3": DecoderFamily(period=4, post_norms=True, plain=True),
    "stablelm": DecoderFamily(norm="layer"),
    "mixtral": DecoderFamily(chosen=2),
    "qwen2_moe": DecoderFamily(chosen=4, weighted=True),
    "qwen3_moe": DecoderFamily(chosen=8, weighted=True),
    "olmoe": DecoderFamily(chosen=8, weighted=True),
    "granitemoe": DecoderFamily(chosen=2),
    "granitemoeshared": DecoderFamily(chosen=2),
}
"""Families by ``model_type``."""

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True)
class DecoderSettings:
    """The settings that all of these models have, as ``ModelSettings.read`` reads them."""

    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 0.0
    layer_norm_eps: float = 1e-5
    hidden_act: str = ""
    hidden_activation: str = ""
    query_pre_attn_scalar: float = 0.0
    attn_logit_softcapping: float = 0.0
    final_logit_softcapping: float = 0.0
    attention_multiplier: float = 0.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    partial_rotary_factor: float = 1.0
    sliding_window: int = 0
    use_parallel_residual: bool = False
    qk_layernorm: bool = False
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = False
    clip_qkv: float = 0.0


def decoder_config(settings: ModelSettings, room: int) -> DecoderConfig:
    """The sizes and variants, for a cache of ``room`` tokens.  Raises RefusedError and FormatError."""
    s, family = settings.read(DecoderSettings), FAMILIES[settings.model_type]
    if s.use_parallel_residual or s.qk_layernorm:
        raise RefusedError("parallel residuals and normalised queries of StableLM are not supported")
    if s.clip_qkv:
        raise RefusedError("queries, keys and values that are clipped (clip_qkv) are not supported")
    activation = s.hidden_activation or s.hidden_act or "silu"
    if activation not in _ACTIVATIONS:
        raise RefusedError(f"the activation '{activation}' is not supported", f"{', '.join(_ACTIVATIONS)} are")
    depth = s.head_dim or s.hidden_size // s.num_attention_heads
    config = DecoderConfig(
        settings.model_type,
        s.hidden_size,
        s.num_attention_heads,
        s.num_key_value_heads or s.num_attention_heads,
        depth,
        s.max_position_embeddings,
        norm=family.norm,
        epsilon=s.rms_norm_eps or s.layer_norm_eps,
        activation=_ACTIVATIONS[activation],
        scale=s.attention_multiplier or (s.query_pre_attn_scalar**-0.5 if s.query_pre_attn_scalar > 0 else 0.0),
        embedding_scale=math.sqrt(s.hidden_size) if family.embedding else s.embedding_multiplier,
        residual_scale=s.residual_multiplier,
        logit_scale=1 / s.logits_scaling if s.logits_scaling else 1.0,
        attention_softcap=s.attn_logit_softcapping,
        logit_softcap=s.final_logit_softcapping,
        mixture=_mixture(s, family),
    )
    return replace(config, layers=_layers(settings, s, family, config, room))


def _mixture(s: DecoderSettings, family: DecoderFamily) -> ExpertChoice | None:
    """How tokens choose experts; None for models without."""
    if not family.chosen:
        return None
    return ExpertChoice(s.num_experts_per_tok or family.chosen, normalised=s.norm_topk_prob or not family.weighted)


def _layers(
    settings: ModelSettings, s: DecoderSettings, family: DecoderFamily, config: DecoderConfig, room: int
) -> tuple[Layer, ...]:
    """The window and rotary embedding of every layer."""
    local = _local(settings.content, s, family)
    turned = settings.content.get("no_rope_layers")
    ropes = {near: _rope(settings, s, config, room, near=near) for near in set(local)}
    rotates = turned if isinstance(turned, list) and len(turned) == len(local) else [1] * len(local)
    return tuple(
        Layer(ropes[near] if rotated else None, s.sliding_window if near else 0)
        for near, rotated in zip(local, rotates, strict=True)
    )


def _local(content: Mapping[str, Any], s: DecoderSettings, family: DecoderFamily) -> list[bool]:
    """Whether each layer has a window."""
    count, types = s.num_hidden_layers, content.get("layer_types")
    if not s.sliding_window or content.get("use_sliding_window") is False:
        return [False] * count
    if isinstance(types, list):
        if len(types) != count or set(types) - {"full_attention", "sliding_attention"}:
            raise RefusedError("layers of other kinds than full_attention and sliding_attention are not supported")
        return [kind == "sliding_attention" for kind in types]
    if family.period:
        return [i % family.period < family.period - 1 for i in range(count)]
    first = content.get("max_window_layers") if content.get("use_sliding_window") else 0
    return [i >= (first if isinstance(first, int) else 0) for i in range(count)]


def _rope(settings: ModelSettings, s: DecoderSettings, config: DecoderConfig, room: int, *, near: bool) -> Rope:
    """The rotary embedding of layers with or without a window."""
    content = settings.content
    stated = content.get("rope_parameters") or content.get("rope_scaling") or {}
    if not isinstance(stated, dict):
        raise FormatError(f"{settings.name}: the settings of rotary embeddings are no JSON object")
    own = stated.get("sliding_attention" if near else "full_attention")
    stated = own if isinstance(own, dict) else stated
    base = stated.get("rope_theta", content.get("rope_theta", 10000.0))
    if near and "rope_local_base_freq" in content:
        base, stated = content["rope_local_base_freq"], {}
    if near and FAMILIES[settings.model_type].plain:
        stated = {}
    values = ModelSettings({**stated, "rope_theta": base}, settings.name).read(_RopeSettings)
    dimensions = int(config.depth * (values.partial_rotary_factor or s.partial_rotary_factor))
    if dimensions <= 0 or dimensions % 2 or dimensions > config.depth:
        raise RefusedError(f"turns {dimensions} of the {config.depth} elements of a head")
    return _scaled(Rope(dimensions, values.rope_theta), values, stated, s, room)


@dataclass(frozen=True)
class _RopeSettings:
    rope_theta: float = 10000.0
    rope_type: str = ""
    type: str = ""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    attention_factor: float = 0.0
    beta_fast: float = 0.0
    beta_slow: float = 0.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    partial_rotary_factor: float = 0.0


def _scaled(rope: Rope, v: _RopeSettings, stated: Mapping[str, Any], s: DecoderSettings, room: int) -> Rope:
    """A rotary embedding scaled for longer texts than the model began with."""
    kind = v.rope_type or v.type or "default"
    original = v.original_max_position_embeddings or s.max_position_embeddings
    if kind == "default":
        return rope
    if kind == "linear":
        return replace(rope, linear=v.factor)
    if kind == "llama3":
        factors = llama3_factors(rope, v.factor, v.low_freq_factor, v.high_freq_factor, original)
        return replace(rope, factors=factors)
    if kind == "yarn":
        return _yarn(rope, v, stated, original)
    if kind == "dynamic" and room <= original:
        return rope
    if kind in ("longrope", "su"):
        listed = stated.get("long_factor" if room > original else "short_factor")
        if not isinstance(listed, list) or len(listed) != rope.dimensions // 2:
            raise FormatError("the factors of rotary embeddings are missing, or not as many as frequencies")
        ratio = s.max_position_embeddings / original
        usual = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
        return replace(rope, factors=np.array(listed, np.float32), magnitude=v.attention_factor or usual)
    raise RefusedError(
        f"rotary embeddings scaled by '{kind}' are not supported", "linear, llama3, longrope and yarn are"
    )


def _yarn(rope: Rope, v: _RopeSettings, stated: Mapping[str, Any], original: int) -> Rope:
    truncate = stated.get("truncate") is not False
    factors = yarn_factors(rope, v.factor, original, v.beta_fast or 32.0, v.beta_slow or 1.0, truncate=truncate)
    magnitude = v.attention_factor
    if not magnitude and v.mscale and v.mscale_all_dim:
        magnitude = yarn_magnitude(v.factor, v.mscale) / yarn_magnitude(v.factor, v.mscale_all_dim)
    return replace(rope, factors=factors, magnitude=magnitude or yarn_magnitude(v.factor))
