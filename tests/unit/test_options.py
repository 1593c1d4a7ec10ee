"""Options: validated once, and the only reader of the environment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from tenon.errors import InputError
from tenon.options import Options, default_cache


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
