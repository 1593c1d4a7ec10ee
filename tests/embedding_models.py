"""A small network that embeds texts, as exporters write it: a mask, token types, and states to be averaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

import tenon
from transformer_models import tokenizer

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
words (int64[b,s] input_ids, int64[b,s] attention_mask, int64[b,s] token_type_ids) => (float[b,s,4] last_hidden_state)
{
  words = Gather (table, input_ids)
  kinds = Gather (table, token_type_ids)
  axis = Constant <value_ints=[2]> ()
  mask = Cast <to=1> (attention_mask)
  column = Unsqueeze (mask, axis)
  both = Add (words, kinds)
  last_hidden_state = Mul (both, column)
}
"""
SHAPES: dict[str, int | tenon.Size | str | Sequence[int | tenon.Size | str]] = {"b": 1, "s": "1..6"}


def folder(path: Path, text: str = NETWORK) -> tuple[Path, np.ndarray]:
    """A folder with the network and its tokenizer, and the rows of its table."""
    model = onnx.parser.parse_model(text)
    table = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    (path / "model.onnx").write_bytes(model.SerializeToString())
    (path / "tokenizer.json").write_bytes(tokenizer(["<pad>", *(f"Ġw{c}" for c in "abcdefg")], {0: "<pad>"}))
    return path, table
