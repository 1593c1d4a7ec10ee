"""Embeddings of texts by ONNX networks as exporters write them: masks, token types, and states to be averaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import tenon
from tenon.errors import InputError
from tenon.speech import Embedder
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


def test_states_are_averaged(tmp_path: Path) -> None:
    model, table = folder(tmp_path)
    with tenon.open(tenon.compile(model, shapes=SHAPES)) as engine:
        one, other = Embedder(engine).embed([" wb", " wc wa"])
    for vector, tokens in ((one, [2]), (other, [3, 1])):
        mean = (table[tokens] + table[0]).mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)


def test_inputs_that_a_text_does_not_give(tmp_path: Path) -> None:
    model, _ = folder(tmp_path, NETWORK.replace("token_type_ids", "colours"))
    with (
        tenon.open(tenon.compile(model, shapes=SHAPES)) as engine,
        pytest.raises(InputError, match="has an input 'colours', which a text does not give"),
    ):
        Embedder(engine)
