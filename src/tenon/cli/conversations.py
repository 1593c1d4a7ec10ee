"""``tenon chat``: conversations with language models, about images too."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon.cli.console import note, print_json
from tenon.cli.image_texts import opened_with_images
from tenon.cli.language_models import described, opened, printed
from tenon.cli.model_source import ModelArgument, Threads
from tenon.errors import TenonError
from tenon.runtime.generation.image_generator import ImageGenerator

if TYPE_CHECKING:
    from tenon.runtime.generation.generator import Generator


def chat(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    prompt: str | None,
    system: str | None,
    images: Sequence[Path],
    how: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Answer a message, or one after another as they are typed; the first one has the ``images``."""
    first = [{"role": "system", "content": system}] if system else []
    shown = [{"type": "image"} for _ in images]
    with (opened_with_images if images else opened)(source, options, threads) as generator:
        if isinstance(generator, ImageGenerator):
            generator.read(*images)
        if prompt is not None:
            message = {"role": "user", "content": [*shown, {"type": "text", "text": prompt}] if shown else prompt}
            completion = printed(generator, [*first, message], how, silent=as_json)
            return print_json(described(completion)) if as_json else None
        return _converse(generator, first, shown, how, as_json=as_json)


def _converse(
    generator: Generator,
    first: list[dict[str, Any]],
    shown: list[dict[str, Any]],
    how: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Read messages and print answers until the input ends; the first message has the images in ``shown``.  Ctrl-C ends
    an answer, and at the prompt the program."""
    messages = list(first)
    if sys.stdin.isatty():
        note("Ctrl-C ends an answer, Ctrl-D the conversation; /reset begins a new one")
    for line in _lines():
        if line == "/reset":
            messages = list(first)
            continue
        if not line:
            continue
        parts = shown if len(messages) == len(first) else []
        messages.append({"role": "user", "content": [*parts, {"type": "text", "text": line}] if parts else line})
        try:
            completion = printed(generator, messages, how, silent=as_json)
        except (KeyboardInterrupt, TenonError) as error:  # Ctrl-C before the answer begins
            if not sys.stdin.isatty():
                raise
            if isinstance(error, TenonError):
                note(str(error))
            else:
                sys.stdout.write("\n")
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": completion.text})
        if as_json:
            print_json(described(completion))


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
