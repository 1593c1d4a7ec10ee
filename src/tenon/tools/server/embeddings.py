"""Answers of /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np

from tenon.errors import LengthError
from tenon.network.graph.dtype import Array
from tenon.runtime.generation.embedder import Embedder
from tenon.tools.server.api_errors import ApiError


def embedded(embedder: Embedder, text: str | list[int]) -> tuple[Array, int]:
    """The embedding f32 [n] of a text or its tokens, and the number of tokens."""
    tokens = embedder.tokenizer.encode(text) if isinstance(text, str) else text
    if not tokens:
        raise ApiError(400, "input: a text is empty", "input")
    if not all(0 <= token < len(embedder.tokenizer.pieces) for token in tokens):
        raise ApiError(400, f"input: tokens are numbers from 0 to {len(embedder.tokenizer.pieces) - 1}", "input")
    try:
        return embedder.embed_tokens(tokens), len(tokens)
    except LengthError as error:
        raise ApiError.of(error, "input") from None


def embedding_answer(
    model: str, vectors: list[Array], tokens: int, form: Literal["float", "base64"], dimensions: int | None
) -> dict[str, Any]:
    """The body of the answer.  Raises ApiError for other ``dimensions`` than the vectors have."""
    if dimensions is not None and dimensions != vectors[0].size:
        raise ApiError(400, f"dimensions: the model's embeddings have {vectors[0].size}: leave it out", "dimensions")
    data = [{"object": "embedding", "index": i, "embedding": _stored(vector, form)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _stored(vector: Array, form: Literal["float", "base64"]) -> list[float] | str:
    if form == "float":
        return [float(value) for value in vector]
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
