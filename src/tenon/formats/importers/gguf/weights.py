"""The weights of a decoder by their names in GGUF files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.wire.gguf import Gguf, GgufTensor
from tenon.machine.kernels.block_formats import FORMATS
from tenon.network.graph.dtype import DType
from tenon.network.graph.graph import Array

_ENDS = {"embedding": "token_embd", "output": "output", "output_norm": "output_norm"}
_OF_LAYER = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "attention_output": "attn_output",
    "attention_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "gate_up": "ffn_up",
    "down": "ffn_down",
    "ffn_post_norm": "post_ffw_norm",
    "router": "ffn_gate_inp",
    "gate_experts": "ffn_gate_exps",
    "up_experts": "ffn_up_exps",
    "down_experts": "ffn_down_exps",
    "shared_router": "ffn_gate_inp_shexp",
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
}
_FLOATS = {"f32": "<f4", "f16": "<f2", "f64": "<f8"}


class GgufWeights:
    """The weights in one file, or in all parts of a model that is stored in several."""

    def __init__(self, parts: Sequence[Gguf]) -> None:
        self.places: Mapping[str, tuple[Gguf, GgufTensor]] = {
            name: (part, tensor) for part in parts for name, tensor in part.tensors.items()
        }

    def weight(self, name: str) -> Weight | None:
        return self._named(name, "weight")

    def bias(self, name: str) -> Weight | None:
        return self._named(name, "bias")

    def place(self, name: str) -> str:
        if name in _ENDS:
            return f"{_ENDS[name]}.weight"
        layer, _, part = name.partition(".")
        return f"blk.{layer}.{_OF_LAYER.get(part, part)}.weight"

    def factors(self, name: str) -> Array | None:
        """The elements of a vector by its name in the file."""
        vector = self.tensor(f"{name}.weight")
        return None if vector is None or vector.format else vector.vector

    def _named(self, name: str, kind: str) -> Weight | None:
        layer, _, part = name.partition(".")
        if (name not in _ENDS and part not in _OF_LAYER) or (
            part == "gate_up" and f"blk.{layer}.ffn_gate.weight" in self.places
        ):
            return None
        return self.tensor(self.place(name).removesuffix("weight") + kind)

    def tensor(self, name: str) -> Weight | None:
        """A tensor of the file; None if there is none.  Raises RefusedError for a type that cannot be read."""
        if name not in self.places:
            return None
        part, tensor = self.places[name]
        if tensor.type in FORMATS:
            return self._blocks(part, tensor)
        if tensor.type == "bf16":
            data = part.stored(tensor, 2 * tensor.size).view("<u2").view(DType.BF16.numpy)
        elif tensor.type in _FLOATS:
            dtype = np.dtype(_FLOATS[tensor.type])
            data = part.stored(tensor, dtype.itemsize * tensor.size).view(dtype)
        else:
            remedy = f"quantise the model to one of {', '.join(FORMATS)}"
            raise RefusedError(f"'{name}' is of the type {tensor.type}, which is not supported", remedy)
        return Weight(data.reshape(tensor.dims))

    def _blocks(self, part: Gguf, tensor: GgufTensor) -> Weight:
        *rows, columns = tensor.dims
        try:
            width = FORMATS[tensor.type].row_bytes(columns)
        except ValueError as error:
            raise FormatError(f"tensor '{tensor.name}': {error}") from None
        return Weight(part.stored(tensor, math.prod(rows) * width).reshape(*rows, width), tensor.type)
