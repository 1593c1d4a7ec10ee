"""Decoders of the library transformers: Llama and its relatives, by the names of their weights and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tenon.errors import Problem, UnsupportedError
from tenon.formats.decompositions.decoder.graph import (
    EMBEDDING_PORTS,
    PORTS,
    decoder_graph,
    embedding_graph,
    image_ports,
    room_of,
)
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.safetensors.decoder_config import FAMILIES, decoder_config
from tenon.formats.importers.safetensors.settings import ModelSettings
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.text_model import ImageText, TextModel
from tenon.network.graph.text_shapes import CONTEXT

_ENDS = {"embedding": "embed_tokens", "output": "lm_head", "output_norm": "norm"}
_OF_LAYER = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "qkv": "self_attn.qkv_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "attention_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "gate_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
}
_POST_NORMS = {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}

_QWEN_EXPERTS = {
    "router": "mlp.gate",
    "gate_experts": "mlp.experts.*.gate_proj",
    "up_experts": "mlp.experts.*.up_proj",
    "down_experts": "mlp.experts.*.down_proj",
    "shared_router": "mlp.shared_expert_gate",
    "shared_gate": "mlp.shared_expert.gate_proj",
    "shared_up": "mlp.shared_expert.up_proj",
    "shared_down": "mlp.shared_expert.down_proj",
}
_GRANITE_EXPERTS = {
    "router": "block_sparse_moe.router.layer",
    "gate_up_experts": "block_sparse_moe.input_linear",
    "down_experts": "block_sparse_moe.output_linear",
    "shared_gate_up": "shared_mlp.input_linear",
    "shared_down": "shared_mlp.output_linear",
}
_EXPERTS = {
    "mixtral": {
        "router": "block_sparse_moe.gate",
        "gate_experts": "block_sparse_moe.experts.*.w1",
        "up_experts": "block_sparse_moe.experts.*.w3",
        "down_experts": "block_sparse_moe.experts.*.w2",
    },
    "qwen2_moe": _QWEN_EXPERTS,
    "qwen3_moe": _QWEN_EXPERTS,
    "olmoe": _QWEN_EXPERTS,
    "granitemoe": _GRANITE_EXPERTS,
    "granitemoeshared": _GRANITE_EXPERTS,
}
"""Names of the weights of experts by type; a star stands for the number of each, where each has a matrix of its own."""


class NamedWeights:
    """The weights of a model by the names of the library."""

    def __init__(self, tensors: Mapping[str, Array], model_type: str, *, tied: bool) -> None:
        self.tensors, self.family, self.tied = tensors, FAMILIES[model_type], tied
        more = _POST_NORMS if self.family.post_norms else {}
        self.names = {**_OF_LAYER, **more, **_EXPERTS.get(model_type, {})}
        self._prefix = "" if "embed_tokens.weight" in tensors else "model."  # none where the last layer was left out

    def weight(self, name: str) -> Weight | None:
        data = self._named(name, "weight")
        if data is None:
            return None
        added = self.family.added if name.endswith("norm") else 0.0
        return Weight(data.astype(np.float32) + np.float32(added) if added else data)

    def place(self, name: str) -> str:
        layer, _, part = name.partition(".")
        stem = _ENDS[name] if name in _ENDS else f"layers.{layer}.{self.names.get(part, part)}"
        return f"{stem if name == 'output' else self._prefix + stem}.weight"

    def bias(self, name: str) -> Weight | None:
        data = self._named(name, "bias")
        return None if data is None else Weight(data)

    def _named(self, name: str, kind: str) -> Array | None:
        known = name in _ENDS or name.partition(".")[2] in self.names
        if not known or (name == "output" and self.tied):
            return None
        place = self.place(name).removesuffix("weight") + kind
        return self._joined(place) if "*" in place else self.tensors.get(place)

    def _joined(self, place: str) -> Array | None:
        """The matrices of all experts, one behind the other.  Raises RefusedError where they are not of one shape."""
        parts = list[Array]()
        while (part := self.tensors.get(place.replace("*", str(len(parts))))) is not None:
            parts.append(part)
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            raise RefusedError(f"has experts of different shapes or types: '{place}'")
        return np.stack(parts) if parts else None


def build_decoder(
    builder: GraphBuilder, settings: ModelSettings, tensors: Mapping[str, Array], image: ImageText | None = None
) -> Graph:
    """The graph of a decoder, and what its settings say of texts; ``image`` is how it reads images."""
    tied = settings.content.get("tie_word_embeddings") is True
    weights = NamedWeights(tensors, settings.model_type, tied=tied)
    context = settings.content.get("max_position_embeddings", CONTEXT)
    try:
        config = decoder_config(settings, room_of(builder.shapes, context if isinstance(context, int) else CONTEXT))
    except RefusedError as refusal:
        raise UnsupportedError(settings.name, [Problem(settings.model_type, refusal.what, refusal.remedy)]) from None
    pooling = settings.pooling
    graph = (
        embedding_graph(builder, config, weights, pooling)
        if pooling
        else decoder_graph(builder, config, weights, image)
    )
    graph.text = TextModel(
        kind="encoder" if pooling else "decoder",
        architecture=settings.model_type,
        ports=EMBEDDING_PORTS if pooling else PORTS if image is None else image_ports(image),
        context=config.context,
        bos=_token(settings.content.get("bos_token_id")),
        eos=_tokens(settings.content.get("eos_token_id")),
        pad=_token(settings.content.get("pad_token_id")),
        image=image,
    )
    return graph


def _token(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _tokens(value: Any) -> tuple[int, ...]:
    """One token or several."""
    listed = value if isinstance(value, list) else [value]
    return tuple(token for each in listed if (token := _token(each)) is not None)
