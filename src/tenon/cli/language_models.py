"""``tenon run --prompt``: text by language models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tenon.cli.console import note, print_json
from tenon.cli.model_source import ModelArgument, Threads, open_engine

if TYPE_CHECKING:
    from tenon.network.graph.graph import Graph
    from tenon.runtime.generation.completion import Completion
    from tenon.runtime.generation.generator import Generator, Prompt


@contextmanager
def opened(source: ModelArgument, options: Mapping[str, Any], threads: Threads) -> Iterator[Generator]:
    """The generator of a model or bundle.  Raises InputError for one that is no language model."""
    from tenon.runtime.generation.generator import Generator, language_of

    def check(graph: Graph) -> None:
        language_of(graph.text, source.name)

    with open_engine(source, options, threads, check=check) as engine, Generator(engine) as generator:
        yield generator


def complete(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    prompt: str,
    how: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print what a model writes behind a prompt."""
    with opened(source, options, threads) as generator:
        print_completion(generator, prompt, how, as_json=as_json)


def print_completion(generator: Generator, prompt: Prompt, how: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a text as it is generated, or all of it as JSON."""
    completion = printed(generator, prompt, how, silent=as_json)
    if (
        not completion.tokens
        and completion.finish == "stop"
        and isinstance(prompt, str)
        and generator.text.chat_template
    ):
        note("the model ended the text at once; it is made for conversations: tenon chat MODEL --prompt TEXT")
    if as_json:
        print_json(described(completion))


def printed(generator: Generator, prompt: Prompt, how: Mapping[str, Any], *, silent: bool) -> Completion:
    """Print a text as it is generated; Ctrl-C ends it at a terminal."""
    stream = generator.stream(prompt, **how)
    try:
        for piece in stream:
            if not silent:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    completion = stream.completion
    if not silent:
        sys.stdout.write("\n")
        _note_speed(completion)
    return completion


def _note_speed(completion: Completion) -> None:
    """On standard error, and only at a terminal: the text alone is what programs read."""
    if not Console(stderr=True).is_terminal:
        return
    tokens, rate = len(completion.tokens), completion.rate
    note(f"{tokens} tokens, {rate:.1f} per second; the prompt {completion.prompt_rate:.1f} per second")


def described(completion: Completion) -> dict[str, Any]:
    """A generated text for JSON."""
    return {
        "text": completion.text,
        "finish": completion.finish,
        "tokens": list(completion.tokens),
        "prompt_tokens": completion.prompt_tokens,
        "prompt_seconds": completion.prompt_seconds,
        "seconds": completion.seconds,
    }
