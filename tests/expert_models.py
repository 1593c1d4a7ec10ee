"""Small decoders with experts and random weights, in GGUF files and by the names of the library transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gguf_models import DEPTH, END_NAMES, F32, HIDDEN, LAYER_NAMES, U32, WIDE, DecoderFile, Pair, gguf
from tenon.network.graph.graph import Array


@dataclass(frozen=True)
class ExpertFile(DecoderFile):
    """A decoder whose layers have ``experts``; ``shared``: an expert that all tokens take is weighted ("weighted"), or
    not ("plain")."""

    experts: int = 5
    chosen: int = 2
    shared: str = ""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes()
        for i in range(self.layers):
            for name in ("gate", "up", "down"):
                own = shapes.pop(f"blk.{i}.ffn_{name}")
                shapes[f"blk.{i}.ffn_{name}_exps"] = (self.experts, *own)
                if self.shared:
                    shapes[f"blk.{i}.ffn_{name}_shexp"] = own
            shapes[f"blk.{i}.ffn_gate_inp"] = (self.experts, HIDDEN)
            if self.shared == "weighted":
                shapes[f"blk.{i}.ffn_gate_inp_shexp"] = (1, HIDDEN)
        return shapes

    def keys(self) -> dict[str, Pair]:
        own = {"expert_count": (U32, self.experts), "expert_used_count": (U32, self.chosen)}
        return replace(self, pairs={**own, **self.pairs}).plain_keys()

    def plain_keys(self) -> dict[str, Pair]:
        """The pairs of the file, without those of experts."""
        return super().keys()


NAMES = END_NAMES | {name: own for name, own in LAYER_NAMES.items() if not own.startswith("mlp.")}
QWEN = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{n}_exps": f"mlp.experts.*.{n}_proj" for n in ("gate", "up", "down")},
    **{f"ffn_{n}_shexp": f"mlp.shared_expert.{n}_proj" for n in ("gate", "up", "down")},
}
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    **{f"ffn_{n}_exps": f"block_sparse_moe.experts.*.{w}" for n, w in (("gate", "w1"), ("up", "w3"), ("down", "w2"))},
}
GRANITE = {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.input_linear",
    "ffn_down_exps": "block_sparse_moe.output_linear",
    "ffn_gate_shexp": "shared_mlp.input_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}


def named(weights: Mapping[str, Array], names: Mapping[str, str]) -> dict[str, Array]:
    """Weights of a GGUF file by the names of the library: with a star, each expert's is one of its own; where no name
    is given for the second of two projections, it follows the rows of the first."""
    result = dict[str, Array]()
    for name, data in weights.items():
        stem, kind = name.rsplit(".", 1)
        layer, own = stem.split(".", 2)[1:] if stem.startswith("blk.") else ("", stem)
        if own not in names and own.startswith("ffn_up"):
            continue
        other = f"blk.{layer}.{own.replace('gate', 'up')}.{kind}"
        if own.startswith("ffn_gate_") and own.replace("gate", "up") not in names and other in weights:
            data = np.concatenate([data, weights[other]], axis=-2)
        place = f"model.layers.{layer}.{names[own]}" if layer else names[own]
        parts = {place: data} if "*" not in place else {place.replace("*", str(i)): p for i, p in enumerate(data)}
        result |= {f"{each}.{kind}": part for each, part in parts.items()}
    return result


def settings(model_type: str, model: ExpertFile, **others: Any) -> dict[str, Any]:
    """The content of ``config.json``."""
    return {
        "model_type": model_type,
        "vocab_size": model.vocabulary,
        "hidden_size": HIDDEN,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads,
        "num_hidden_layers": model.layers,
        "head_dim": DEPTH,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "intermediate_size": WIDE,
        "moe_intermediate_size": WIDE,
        "tie_word_embeddings": model.tied,
        "rope_theta": 10000.0,
        "num_experts": model.experts,
        "num_local_experts": model.experts,
        "num_experts_per_tok": model.chosen,
        **others,
    }


def in_neighbours(model: DecoderFile, weights: Mapping[str, Array]) -> dict[str, Array]:
    """Weights whose queries and keys are in the order that embeddings which turn neighbours want."""
    return {
        name: data.reshape(-1, 2, DEPTH // 2, HIDDEN).swapaxes(1, 2).reshape(data.shape)
        if name.endswith(("attn_q.weight", "attn_k.weight"))
        else data
        for name, data in weights.items()
    }


def in_gguf(model: DecoderFile, weights: Mapping[str, Array], kinds: Mapping[str, str] | None = None) -> bytes:
    """The file of weights in f32."""
    return gguf(model.keys(), {name: ("f32", data.shape, data.tobytes()) for name, data in weights.items()})


BOTH = ("attn_norm", "ffn_norm")
QK = (*BOTH, "attn_q_norm", "attn_k_norm")
SCALES: Mapping[str, Any] = {
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.125,
    "residual_multiplier": 0.7,
    "logits_scaling": 4.0,
}
GGUF_SCALES: Mapping[str, Pair] = {
    "embedding_scale": (F32, 2.0),
    "attention.scale": (F32, 0.125),
    "residual_scale": (F32, 0.7),
    "logit_scale": (F32, 4.0),
}
MODELS: Mapping[str, tuple[ExpertFile, Mapping[str, str], Mapping[str, Any]]] = {
    "mixtral": (ExpertFile("llama"), MIXTRAL, {}),
    "qwen2_moe": (
        ExpertFile("qwen2moe", biases=True, shared="weighted", experts=6, chosen=3),
        QWEN,
        {"norm_topk_prob": False, "shared_expert_intermediate_size": WIDE},
    ),
    "qwen3_moe": (ExpertFile("qwen3moe", norms=QK, experts=7, chosen=3), QWEN, {"norm_topk_prob": True}),
    "olmoe": (ExpertFile("olmoe", norms=QK, together=True, key_heads=4), QWEN, {"norm_topk_prob": False}),
    "granitemoe": (ExpertFile("granitemoe", pairs=GGUF_SCALES, chosen=3), GRANITE, SCALES),
    "granitemoeshared": (
        ExpertFile("granitemoe", pairs=GGUF_SCALES, shared="plain"),
        GRANITE,
        {**SCALES, "shared_intermediate_size": WIDE},
    ),
}
"""The model in a GGUF file, the names of its weights in the library, and further settings."""

NEIGHBOURS = ("llama", "granitemoe")
"""Architectures whose files have queries and keys in the order of neighbours."""
