"""``tenon run --prompt`` and ``tenon chat``: text by language models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tenon.cli.console import note, print_json
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.errors import TenonError

if TYPE_CHECKING:
    from tenon.runtime.generation.completion import Completion
    from tenon.runtime.generation.generator import Generator, Prompt


@contextmanager
def opened(source: ModelArgument, options: Mapping[str, Any], threads: Threads) -> Iterator[Generator]:
    """The generator of a model or bundle.  Raises InputError for one that is no language model."""
    from tenon.runtime.generation.generator import Generator

    with open_engine(source, options, threads) as engine, Generator(engine) as generator:
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
    completion = _printed(generator, prompt, how, silent=as_json)
    if not completion.tokens and isinstance(prompt, str) and generator.text.chat_template:
        note("the model ended the text at once; it is made for conversations: tenon chat MODEL --prompt TEXT")
    if as_json:
        print_json(_described(completion))


def chat(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    prompt: str | None,
    system: str | None,
    how: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Answer a message, or one after another as they are typed."""
    first = [{"role": "system", "content": system}] if system else []
    with opened(source, options, threads) as generator:
        if prompt is not None:
            completion = _printed(generator, [*first, {"role": "user", "content": prompt}], how, silent=as_json)
            return print_json(_described(completion)) if as_json else None
        return _converse(generator, first, how, as_json=as_json)


def _converse(generator: Generator, first: list[dict[str, str]], how: Mapping[str, Any], *, as_json: bool) -> None:
    """Read messages and print answers until the input ends.  Ctrl-C ends an answer, and at the prompt the program."""
    messages = list(first)
    if sys.stdin.isatty():
        note("Ctrl-C ends an answer, Ctrl-D the conversation; /reset begins a new one")
    for line in _lines():
        if line == "/reset":
            messages = list(first)
            continue
        if not line:
            continue
        messages.append({"role": "user", "content": line})
        try:
            completion = _printed(generator, messages, how, silent=as_json)
        except TenonError as error:
            if not sys.stdin.isatty():
                raise
            note(str(error))
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": completion.text})
        if as_json:
            print_json(_described(completion))


def _lines() -> Iterator[str]:
    """The lines that are typed, or piped; a backslash at the end goes on in the next line."""
    prompt = "> " if sys.stdin.isatty() else ""
    if prompt:
        import contextlib

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # gives input() a history and editing
    text = ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            break
        text += line
        if text.endswith("\\"):
            text = text[:-1] + "\n"
            continue
        yield text.strip()
        text = ""
    if text.strip():
        yield text.strip()


def _printed(generator: Generator, prompt: Prompt, how: Mapping[str, Any], *, silent: bool) -> Completion:
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


def _described(completion: Completion) -> dict[str, Any]:
    return {
        "text": completion.text,
        "finish": completion.finish,
        "tokens": list(completion.tokens),
        "prompt_tokens": completion.prompt_tokens,
        "prompt_seconds": completion.prompt_seconds,
        "seconds": completion.seconds,
    }
