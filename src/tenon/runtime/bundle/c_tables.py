"""The tables by which programs in C read and write the texts of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tenon.errors import FormatError, InputError, UnsupportedError
from tenon.network.graph.text_model import TextModel
from tenon.runtime.text.chat_form import ChatForm, chat_form
from tenon.runtime.text.chat_template import special_names
from tenon.runtime.text.sampling import Sampling
from tenon.runtime.text.speech_tokens import SpeechTokens
from tenon.runtime.text.text_tables import names_of, text_tables
from tenon.runtime.text.tokenizer import definition_of


@dataclass(frozen=True)
class CTables:
    """The tables of a model's tokenizer, its chat template and how it samples.

    ``chat``: whether they have a chat template; ``problem`` says why that of the model is not in them.
    """

    content: bytes
    chat: bool
    problem: str = ""


def c_tables(model: TextModel, byte_order: Literal["little", "big"]) -> CTables:
    """The tables of a model with a tokenizer.

    Raises UnsupportedError for what the functions in C lack, FormatError for a damaged tokenizer, InputError for one
    that cannot be read.
    """
    definition, form, problem = definition_of(model), None, ""
    if model.chat_template:
        names = names_of(definition)
        try:
            form = _form(model, names)
        except UnsupportedError as error:
            problem = f"the chat template: {error.problems[0].what}"
        except InputError as error:
            problem = str(error)
    sampling = Sampling.of(model.generation)
    speech = SpeechTokens.of(model, definition) if model.kind == "encoder-decoder" else None
    content = text_tables(
        definition,
        model.eos,
        byte_order,
        sampling=sampling,
        chat=form,
        grammar=model.grammar,
        speech=speech,
        rewind=model.rewind,
        room=model.room,
    )
    return CTables(content, form is not None, problem)


def usual_tables(model: TextModel | None, byte_order: Literal["little", "big"]) -> bytes | None:
    """The same for libtenon, beside any bundle of a decoder; None where there are none."""
    if model is None or model.kind not in ("decoder", "encoder-decoder") or model.tokenizer is None:
        return None
    try:
        return c_tables(model, byte_order).content
    except (UnsupportedError, FormatError, InputError):
        return None


def tables_file(name: str) -> str:
    """The name of the file with the tables of a bundle."""
    return f"{name}.text.bin"


def _form(model: TextModel, names: dict[int, str]) -> ChatForm:
    return chat_form(model.chat_template, special_names(model, lambda number: names.get(number, "")))
