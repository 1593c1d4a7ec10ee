"""Settings of language models: what a model file says about its tokens, beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a model file, as it is stored there.

    ``form`` is that of ``content``: "tokenizer.json", the bytes of such a file, "gguf", the JSON of the metadata
    ``tokenizer.ggml.*`` without that prefix, or "sentencepiece", the bytes of a ``tokenizer.model``.
    """

    form: Literal["tokenizer.json", "gguf", "sentencepiece"]
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class TextModel:
    """A model whose inputs or outputs are tokens.

    ``kind`` is "decoder" (next token), "encoder-decoder" or "encoder" (embeddings); ``ports`` maps the roles "tokens",
    "logits" and "past" (the size that counts the tokens in the caches) to names of the graph; ``context`` is the number
    of tokens that the model was trained for.  ``eos`` are all tokens that end a text or a turn; ``generation`` holds
    the file's values of temperature, top_k, top_p, min_p, repetition_penalty and do_sample.

    ``start`` are the tokens that a decoder behind an encoder begins with; ``suppressed`` are never generated, and
    ``suppressed_first`` not as the first token.

    ``rewind`` says how many of the last tokens can be taken back where caches are rings (``passes.cache_rings``); None:
    all.  ``grammar``, in GBNF, is what texts follow unless another one is given; "": none.
    """

    kind: str = "decoder"
    architecture: str = ""
    ports: Mapping[str, str] = field(default_factory=dict)
    context: int = 0
    tokenizer: Tokenizer | None = None
    bos: int | None = None
    pad: int | None = None
    unknown: int | None = None
    eos: tuple[int, ...] = ()
    add_bos: bool = False
    add_eos: bool = False
    chat_template: str = ""
    generation: Mapping[str, float] = field(default_factory=dict)
    start: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    rewind: int | None = None
    grammar: str = ""
