"""Text from a prompt or a conversation, by a language model."""

from __future__ import annotations

import os
from collections.abc import Generator as PyGenerator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeGuard, Unpack

import numpy as np

from tenon.errors import InputError, LengthError, guarded
from tenon.network.graph.dtype import Array
from tenon.network.graph.text_model import TextModel
from tenon.runtime.bundle.container import is_container
from tenon.runtime.bundle.manifest import FILE
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.generation.completion import Completion, Finish, TokenScore
from tenon.runtime.generation.decoder import Decoder
from tenon.runtime.generation.sequences import SequenceDecoder, has_sequences
from tenon.runtime.generation.text_batch import TextBatch
from tenon.runtime.text.chat_template import Messages, check_prompt, conversation, special_names
from tenon.runtime.text.grammar import TokenGrammar, TokenGrammars, read_grammar, rules_grammar, schema_grammar
from tenon.runtime.text.sampling import Sampling, TokenSampler, logarithms
from tenon.runtime.text.text_stream import TextStream
from tenon.runtime.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from tenon.pipeline import Model
    from tenon.runtime.bundle import Bundle

Prompt = str | Messages
"""A text to go on with, or the messages of a conversation, which the model's chat template makes a text of."""


class SamplingKeywords(TypedDict, total=False):
    """The fields of ``Sampling``; None is the value that the model recommends, else the most probable token."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    penalty_window: int | None
    seed: int | None


class Generator:
    """Generates text with a language model, one text at a time, or as many as it is compiled for (``sequences``).

        generator = tenon.Generator("model.gguf", threads=4)
        print(generator.generate("Once upon a time", max_tokens=50).text)
        answer = generator.generate([{"role": "user", "content": "Hello"}], temperature=0.7, seed=1)

    ``model`` is a model, which is compiled with ``options`` (fields of ``tenon.Options``), a bundle, or an engine.
    The caches keep the tokens of the last text: what the next prompt has in common with it is not computed again.

    Raises InputError for a network that is no language model or has no tokenizer, and as ``tenon.compile`` and
    ``tenon.open`` do.
    """

    @guarded
    def __init__(self, model: Model | Bundle | Engine, *, threads: int = 1, **options: Any) -> None:
        self.engine = opened(model, threads, options)
        text, self.tokenizer = language_of(self.engine.text, self.engine.name)
        self.text: TextModel = text
        self._decoder: Decoder | SequenceDecoder
        self._batch: TextBatch | None = None
        if has_sequences(self.engine):
            self._decoder = SequenceDecoder(self.engine, text)
            self._batch = TextBatch(self._decoder)
        else:
            self._decoder = Decoder(self.engine, text)

    @property
    def sequences(self) -> int:
        """How many texts are generated at the same time."""
        return self._decoder.count if isinstance(self._decoder, SequenceDecoder) else 1

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its continuation."""
        return self._decoder.room

    @cached_property
    def _grammars(self) -> TokenGrammars:
        return TokenGrammars(self.tokenizer, self.text.eos, self._decoder.vocabulary)

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt.  Raises InputError for an empty one, LengthError for one that leaves no room in
        the caches, ModelError for a chat template that fails."""
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        else:
            text = conversation(self.text.chat_template, prompt, special_names(self.text, self.tokenizer.name))
            tokens = self.tokenizer.encode(text, special=False)
        if not tokens and self.text.bos is not None:
            tokens = [self.text.bos]
        if not tokens:
            raise InputError("the prompt is empty")
        if len(tokens) >= self.context:
            raise LengthError(
                f"the prompt has {len(tokens)} tokens, and the caches have room for {self.context}: shorten it, or "
                "compile the model with more (--context, context=...)"
            )
        return tokens

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        grammar: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        logprobs: int | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Completion:
        """Go on with a prompt, or answer the last message of a conversation.

        At most ``max_tokens`` tokens are generated; the text ends before one of the strings ``stop``, and follows
        ``grammar``, a JSON schema or the path of a grammar's file (None: the bundle's, if any; "": none).  ``logprobs``
        asks for the scores of the tokens, with those of so many of the most probable ones.  The other arguments are
        fields of ``Sampling``.
        Raises InputError for bad arguments, LengthError for a prompt that is too long.
        """
        stream = self.stream(prompt, max_tokens=max_tokens, stop=stop, grammar=grammar, logprobs=logprobs, **sampling)
        for _ in stream:
            pass
        return stream.completion

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        grammar: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        logprobs: int | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Generation:
        """Generate a text piece by piece: an iterator over pieces of whole characters, whose ``completion`` is the
        whole text afterwards.  Arguments and errors are those of ``generate``."""
        self.engine.check_open()
        check_prompt(prompt)
        counts: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": logprobs}
        for name, count in counts.items():
            if count is not None and not (isinstance(count, int | np.integer) and count >= 0):
                raise InputError(f"{name}={count}: it is a whole number, 0 or more")
        if not isinstance(stop, Sequence) or not all(isinstance(end, str) for end in stop):
            raise InputError(f"stop={stop!r}: it is a text, or a list of texts")
        ends = (stop,) if isinstance(stop, str) else tuple(stop)
        how = Sampling.of(self.text.generation).changed(sampling)
        rules = _grammar_text(grammar if grammar is not None else "", self.text.grammar if grammar is None else "")
        state = self._grammars.parse(rules) if rules else None
        limit = self.context if max_tokens is None else max_tokens
        return Generation(self, self.tokens_of(prompt), how, TextStream(ends), state, limit, logprobs)

    def generate_all(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        grammar: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        logprobs: int | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> list[Completion]:
        """Go on with several prompts, or often with one: ``[prompt] * 4``.

        A model compiled with ``sequences`` generates so many texts at the same time.  The arguments are those of
        ``generate``; the seed of each text is one more than that of the text before it.
        """
        if isinstance(prompts, str | Mapping):
            raise InputError("prompts is one prompt: give a list of them")
        streams, seed = list[Generation](), sampling.pop("seed", None)
        for number, prompt in enumerate(prompts):
            own: SamplingKeywords = {**sampling, "seed": None if seed is None else seed + number}
            streams.append(
                self.stream(prompt, max_tokens=max_tokens, stop=stop, grammar=grammar, logprobs=logprobs, **own)
            )
        left = list(streams)
        while left:
            for stream in left[: self.sequences]:
                if next(stream, None) is None:
                    left.remove(stream)
        return [stream.completion for stream in streams]

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Generator('{self.engine.name}', context={self.context})"


class Generation:
    """A text that is being generated: an iterator over its pieces.  ``completion`` is what there is of it so far."""

    def __init__(
        self,
        generator: Generator,
        prompt: list[int],
        sampling: Sampling,
        stream: TextStream,
        grammar: TokenGrammar | None,
        limit: int,
        logprobs: int | None = None,
    ) -> None:
        self._top, self._scores = logprobs, list[TokenScore]()
        self._generator = generator
        self._sampler, self._stream, self._grammar, self._limit = TokenSampler(sampling, prompt), stream, grammar, limit
        self.prompt, self.ended = prompt, False
        self._tokens, self._text, self._given = list[int](), "", 0
        self._began = self._prompted = 0.0
        self.completion = Completion("", (), "length", len(prompt), 0, 0.0, 0.0)
        batch = generator._batch
        self._pieces = self._run() if batch is None else batch.pieces(self)

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the text where it is: a place in the caches that it has among other texts is free then."""
        self._pieces.close()

    def _run(self) -> PyGenerator[str]:
        decoder = self._generator._decoder
        assert isinstance(decoder, Decoder)
        kept = decoder.keep(self.prompt)
        self.begin(kept)
        following = self.prompt[kept:]
        while following:
            following = self.receive(decoder.run(following), len(decoder.tokens), decoder.room)
            if piece := self.taken():
                yield piece

    def begin(self, kept: int) -> None:
        """``kept`` tokens of the prompt are in the caches already."""
        self._began = perf_counter()
        self.completion = replace(self.completion, reused_tokens=kept)

    def taken(self) -> str:
        """The text that was generated since this was asked."""
        piece, self._given = self._text[self._given :], len(self._text)
        return piece

    def receive(self, logits: Array, used: int, room: int) -> list[int]:
        """The next token by its logits, in a list; none if the text has ended.  ``used`` tokens are in the caches, of
        at most ``room``."""
        if not self._prompted:
            self._prompted = perf_counter()
            self.completion = replace(self.completion, prompt_seconds=self._prompted - self._began)
        finish, piece = self._next(logits, full=used >= room)
        self._text += piece
        seconds, tokens = perf_counter() - self._prompted, tuple(self._tokens)
        shown = finish or "length"
        done = replace(self.completion, text=self._text, tokens=tokens, finish=shown, seconds=seconds)
        self.completion, self.ended = replace(done, scores=tuple(self._scores)), finish is not None
        return [] if self.ended else self._tokens[-1:]

    def _next(self, logits: Array, *, full: bool) -> tuple[Finish | None, str]:
        """The text of the next token, and why the text ends with it, if it does."""
        if len(self._tokens) >= self._limit:
            return self._ended("length")
        token = self._sampler.choose(logits, self._grammar.allowed() if self._grammar else None)
        if token in self._generator.text.eos:
            return self._ended("stop")
        self._tokens.append(token)
        if self._top is not None:
            self._scores.append(score_of(logits, token, self._top))
        piece = self._stream.add(self._generator.tokenizer.bytes_of([token]))
        complete = self._grammar is not None and self._grammar.add(token)
        if self._stream.stopped or complete:
            return self._ended("stop", piece)
        if len(self._tokens) >= self._limit:
            return self._ended("length", piece)
        return self._ended("context", piece) if full else (None, piece)

    def _ended(self, why: Finish, piece: str = "") -> tuple[Finish, str]:
        return why, piece + self._stream.finish()


@guarded
def generate(
    model: Model | Bundle | Engine,
    prompt: Prompt,
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] | str = (),
    grammar: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    threads: int = 1,
    options: Mapping[str, Any] | None = None,
    **sampling: Unpack[SamplingKeywords],
) -> Completion:
    """Go on with a prompt, or answer the last message of a conversation, by a language model.

    ``model`` and ``threads`` are as for ``Generator``, ``options`` those of a compilation; the other arguments are
    those of ``Generator.generate``.  To generate several texts, keep a ``Generator``.
    """
    generator = Generator(model, threads=threads, **(options or {}))
    try:
        return generator.generate(prompt, max_tokens=max_tokens, stop=stop, grammar=grammar, **sampling)
    finally:
        if not isinstance(model, Engine):
            generator.close()


def score_of(logits: Array, token: int, top: int) -> TokenScore:
    """The score of a token by logits f32[vocabulary], with those of the ``top`` most probable ones."""
    scores = logarithms(logits)
    order = np.argsort(-scores, kind="stable")[:top]
    return TokenScore(token, float(scores[token]), tuple((int(i), float(scores[i])) for i in order))


def language_of(text: TextModel | None, name: str) -> tuple[TextModel, TextTokenizer]:
    """The description and the tokenizer of a language model.  Raises InputError for a network that does not predict
    tokens, or has no tokenizer."""
    if text is None or text.kind != "decoder":
        raise InputError(
            f"'{name}' is no language model that predicts tokens: give a GGUF file, or a folder with a language model "
            "and its tokenizer.json"
        )
    if text.tokenizer is None:
        raise InputError(f"'{name}' has no tokenizer: put its tokenizer.json beside the model")
    return text, TextTokenizer.of(text)


def opened(model: Model | Bundle | Engine, threads: int, options: Mapping[str, Any]) -> Engine:
    """An engine for a model, which is compiled with ``options``, or for a bundle; an engine is returned as it is."""
    if isinstance(model, Engine):
        return model
    if not _is_bundle(model):
        from tenon.pipeline import compile as compile_model  # the compiler, which bundles on disk do not need
        from tenon.runtime.bundle import Bundle

        if not isinstance(model, Bundle):
            return open_bundle(compile_model(model, threads=threads, **options), threads=threads)
    if options:
        raise InputError(f"a bundle is compiled already: leave out {', '.join(options)}")
    return open_bundle(model, threads=threads)


def _is_bundle(model: Model) -> TypeGuard[str | os.PathLike[str]]:
    if not isinstance(model, str | os.PathLike):
        return False
    return is_container(model) or os.path.isfile(os.path.join(model, FILE))  # noqa: PTH113, PTH118  # no OSError


def _grammar_text(grammar: Mapping[str, Any] | str | os.PathLike[str], own: str) -> str:
    """The grammar that is given, else the bundle's ``own`` in GBNF; "": none."""
    if isinstance(grammar, Mapping):
        return schema_grammar(grammar)
    if grammar == "":
        return own and rules_grammar(own)
    return read_grammar(Path(grammar))
