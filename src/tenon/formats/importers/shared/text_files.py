"""The settings of a language model in the files beside it, as the libraries of Hugging Face write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tenon.errors import FormatError
from tenon.input_file import is_regular, read_regular
from tenon.network.graph.text_model import TextModel, Tokenizer

TOKENIZER = "tokenizer.json"
_GENERATION = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "do_sample")


def settings_beside(folder: Path, given: TextModel | None = None) -> TextModel | None:
    """The settings in a folder's tokenizer.json, tokenizer_config.json, generation_config.json and config.json, or the
    genai_config.json of ONNX Runtime GenAI, added to what the model file says itself; None if there is no tokenizer.
    Raises FormatError for a damaged file."""
    if not is_regular(folder / TOKENIZER):
        return given
    content = read_regular(folder / TOKENIZER)
    options, generation, config = (
        _read(folder / f"{name}.json") for name in ("tokenizer_config", "generation_config", "config")
    )
    if not config and not generation:
        config, generation = _of_genai(_read(folder / "genai_config.json"))
    numbers = _added_numbers(content)
    ends = [_listed(source.get("eos_token_id")) for source in (generation, config)]
    named = _number(options.get("eos_token"), numbers)
    eos = [*ends[0], *ends[1], *([] if named is None else [named])]
    model = given or TextModel()
    return replace(
        model,
        architecture=model.architecture or str(config.get("model_type", "")),
        context=model.context or _count(config.get("max_position_embeddings")),
        tokenizer=Tokenizer("tokenizer.json", content),
        bos=_first(_number(options.get("bos_token"), numbers), *_listed(config.get("bos_token_id"))),
        pad=_first(_number(options.get("pad_token"), numbers), *_listed(config.get("pad_token_id"))),
        eos=tuple(dict.fromkeys(eos)) or model.eos,
        chat_template=_template(folder, options) or model.chat_template,
        generation={k: float(generation[k]) for k in _GENERATION if isinstance(generation.get(k), int | float)}
        or model.generation,
        start=tuple(_either("decoder_start_token_id", generation, config)) or model.start,
        suppressed=tuple(_either("suppress_tokens", generation, config)) or model.suppressed,
        suppressed_first=tuple(_either("begin_suppress_tokens", generation, config)) or model.suppressed_first,
    )


def _read(path: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one where there is no such file."""
    if not is_regular(path):
        return {}
    try:
        content = json.loads(read_regular(path))
    except ValueError as error:
        raise FormatError(f"{path}: it is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{path}: it is no JSON object")
    return content


def _of_genai(content: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The settings of ONNX Runtime GenAI, by the names of config.json and of generation_config.json."""
    model, search = ({} if not isinstance(part := content.get(key), dict) else part for key in ("model", "search"))
    names = {"context_length": "max_position_embeddings", "type": "model_type"}
    return {names.get(str(key), str(key)): value for key, value in model.items()}, search


def _added_numbers(content: bytes) -> dict[str, int]:
    """The numbers of the special tokens of a tokenizer.json."""
    try:
        added = json.loads(content)["added_tokens"]
        return {each["content"]: each["id"] for each in added}
    except (ValueError, TypeError, KeyError):
        return {}


def _number(token: Any, numbers: Mapping[str, int]) -> int | None:
    """A token that is stated by its text, or by an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return numbers.get(text) if isinstance(text, str) else None


def _listed(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]


def _either(key: str, *sources: Mapping[str, Any]) -> list[int]:
    """The numbers of the first source that has any."""
    return next((numbers for source in sources if (numbers := _listed(source.get(key)))), [])


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _template(folder: Path, options: Mapping[str, Any]) -> str:
    """The chat template: a file of its own, or a text or list of named ones in tokenizer_config.json."""
    if is_regular(folder / "chat_template.jinja"):
        return read_regular(folder / "chat_template.jinja").decode("utf-8", "replace")
    template = options.get("chat_template")
    if isinstance(template, list):
        named: Sequence[Any] = [each for each in template if isinstance(each, dict)]
        usual = [each for each in named if each.get("name") == "default"]
        template = next((each.get("template") for each in (*usual, *named)), "")
    return template if isinstance(template, str) else ""
