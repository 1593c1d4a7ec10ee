"""Options: validation, environment variables, and keywords of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from functools import reduce
from inspect import Parameter, signature
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

import tenon
from tenon.cli.parse import parse_processors
from tenon.errors import InputError
from tenon.options import OptionKeywords, Options, default_cache
from tenon.pipeline import tune
from tenon.validation import ByteCount

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"


def test_environment_is_read_and_overridden() -> None:
    environment = {
        "TENON_TARGET": "aarch64",
        "TENON_OPTIMIZE": "1",
        "TENON_CC": "gcc",
        "TENON_CACHE": "/c",
        "TENON_EMIT": "c, header",
        "TENON_VERIFY": "1",
    }
    options = Options.from_environment(environment, optimize=0, target=None)
    assert options.target == "aarch64"
    assert options.optimize == 0
    assert options.compiler == "gcc"
    assert options.cache == Path("/c")
    assert options.emit == ("c", "header")
    assert options.verify


def test_cache_folder_follows_the_xdg_rules() -> None:
    assert default_cache({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/tenon")
    assert default_cache({"HOME": "/h"}) == Path("/h/.cache/tenon")
    assert Options.from_environment({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/tenon")


def test_empty_variables_count_as_unset() -> None:
    assert Options.from_environment({"TENON_CC": "", "TENON_TARGET": ""}).compiler is None


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Options.from_environment({}, optimize=9, name="not a name", emit=("nothing",), colour="red")
    text = str(caught.value)
    assert all(word in text for word in ("optimize=9", "not a name", "nothing", "no option 'colour'"))


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign"):
        setattr(Options(), "target", "x")  # noqa: B010  (an assignment would not pass the type checker)


# ------------------------------------------------------------------------------------------- keywords of functions
def _accepted(hint: Any) -> Any:
    """The type annotation of the keyword for an option of this type: paths and numbers of bytes also as str, lists for
    tuples, None for the default.
    """
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    origin, arguments = get_origin(plain), get_args(plain)
    if origin in (Union, UnionType):
        return reduce(or_, (_accepted(a) for a in arguments))
    if plain is Path:
        return str | Path | None
    if plain is ByteCount:
        return int | str | None
    if origin is tuple and arguments[1:] == (...,):
        return list.__class_getitem__(arguments[0]) | plain | None
    return plain if plain is NoneType else plain | None


def test_keywords_are_the_options() -> None:
    """Editors show what ``compile`` takes, and it is what ``Options`` has."""
    options, keywords = get_type_hints(Options, include_extras=True), get_type_hints(OptionKeywords)
    assert list(keywords) == [option.name for option in fields(Options)]
    for name, hint in options.items():
        if name in keywords:
            assert keywords[name] == _accepted(hint), name


@pytest.mark.parametrize("function", [tenon.compile, tenon.inspect, tune])
def test_signatures_list_the_options(function: Callable[..., object]) -> None:
    parameters = signature(function).parameters
    assert {option.name for option in fields(Options)} <= parameters.keys()
    assert not [p for p in parameters.values() if p.kind is Parameter.VAR_KEYWORD]
    assert len(parameters) == len(set(parameters))


def test_none_keywords_are_ignored() -> None:
    options = Options(target="aarch64", optimize=1)
    bundle = tenon.compile(DIGITS, options, target=None, optimize=None, name="net")
    assert (bundle.target.name, bundle.compilation.optimize, bundle.name) == ("aarch64", 1, "net")


def test_numbers_of_many_digits() -> None:
    for text in ("9" * 6000, "9" * 6000 + "K", "1." + "0" * 6000):
        with pytest.raises(ValueError, match=r"^[0-9.]+K?$"):
            ByteCount(text)
    for text in ("0-99999999999999", "9" * 6000, "-1"):
        with pytest.raises(InputError, match="write numbers of processors"):
            parse_processors(text)
