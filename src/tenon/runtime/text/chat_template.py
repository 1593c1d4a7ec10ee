"""Conversations as one text, by the template of the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tenon.errors import InputError, ModelError
from tenon.network.graph.text_model import TextModel

Messages = Sequence[Mapping[str, Any]]
"""Messages of a conversation: ``role`` ("system", "user", "assistant") and ``content`` of each."""

NO_JINJA = "chat templates need the package jinja2: pip install jinja2"
"""The error where the package is not installed."""


def check_prompt(prompt: object) -> None:
    """Raises InputError for what is neither a text nor a list of messages."""
    if isinstance(prompt, str):
        return
    if isinstance(prompt, Mapping) or not isinstance(prompt, Sequence):
        raise InputError(f"the prompt is a {type(prompt).__name__}: give a text, or a list of messages")
    for number, message in enumerate(prompt, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f"message {number} of the prompt has no role: a message has the keys role and content")
        content = message.get("content")
        if not isinstance(content, str | list | tuple) and not (content is None and message["role"] == "assistant"):
            raise InputError(f"message {number} of the prompt has no content that is a text, or a list of parts")


def special_names(model: TextModel, name: Callable[[int], str]) -> dict[str, str]:
    """The names of the tokens at the beginning and the end of texts, which chat templates refer to; ``name`` is that of
    a token."""
    ids = {"bos_token": model.bos, "eos_token": next(iter(model.eos), None), "pad_token": model.pad}
    return {role: name(number) for role, number in ids.items() if number is not None}


def conversation(
    template: str, messages: Messages, names: Mapping[str, str], *, answer: bool = True, today: bool = True
) -> str:
    """The text of a conversation, ended by the beginning of an answer if one is to follow.

    ``names`` are texts of special tokens ("bos_token", "eos_token").  Templates can ask for the date if ``today``; else
    they write one of their own.  The template runs in Jinja's sandbox.  Raises
    InputError if there is no template, the package jinja2 is missing, or the template refuses the messages, ModelError
    for a template with an error.
    """
    if not template:
        raise InputError("the model has no chat template: give its whole text with --prompt instead of messages")
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise InputError(NO_JINJA) from None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    if today:
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    plain = [dict(message) for message in messages]
    try:
        made = environment.from_string(template)
        return made.render(messages=plain, add_generation_prompt=answer, tools=None, **names)
    except TemplateError as error:
        raise ModelError(f"the model's chat template fails: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError, MemoryError, OverflowError) as error:
        raise ModelError(f"the model's chat template fails on these messages: {error!r}") from error


def _as_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> str:
    raise InputError(f"the model's chat template refuses the messages: {message}")
