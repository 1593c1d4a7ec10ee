"""Embeddings of texts by ONNX networks as exporters write them: masks, token types, and states to be averaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from embedding_models import NETWORK, SHAPES, folder
from tenon.errors import InputError
from tenon.speech import Embedder


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
