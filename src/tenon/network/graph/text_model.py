"""Settings of language models: what a model file says about its tokens, beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class ImageText(NamedTuple):
    """How a language model reads images: the text that an image becomes in a prompt.

    ``mark`` stands for an image in prompts.  The rows of an image follow ``before`` and are followed by ``after``;
    ``row`` is the token of the vocabulary that stands for a row where texts become tokens ("": there is none).

    An image that is cut into parts has ``parts`` texts: what stands before each part, with "{row}" and "{column}" in
    it, and what follows each line of parts.  The whole image comes behind them, after that second text once more.
    Its longer side is resized to ``longest`` before it is cut; 0: images are not cut.

    ``together`` is how many rows see one another, and so belong to one run; 0: rows see those before them only.
    """

    mark: str = "<image>"
    before: str = ""
    after: str = ""
    row: str = ""
    parts: tuple[str, ...] = ()
    longest: int = 0
    together: int = 0


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

    ``image`` says how images stand in prompts, for models that read them.

    Where caches are rings (``passes.cache_rings``), ``rewind`` says how many of the last tokens can be taken back
    (None: all), and ``room`` how many tokens a sequence has (0: as many as the caches).  ``grammar``, in GBNF, is what
    texts follow unless another one is given; "": none.
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
    room: int = 0
    grammar: str = ""
    image: ImageText | None = None


def no_text(network: str, name: str, text: TextModel) -> str:
    """The message about an input ``name`` of a network which a text does not give; it names the part that embeds texts,
    if the model says which one."""
    part = text.ports.get("embedding", "")
    remedy = f": take its part for texts, --to {part}" if part else ""
    return f"'{network}' has an input '{name}', which a text does not give{remedy}"
