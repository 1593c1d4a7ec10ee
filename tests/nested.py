"""Structure-aware mutations of JSON, also inside other files, and of members of zip archives."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from functools import lru_cache
from typing import Any

VALUES: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    65536,
    2**31 - 1,
    2**32,
    -(2**31),
    10**19,
    0.5,
    -0.0,
    1e40,
    None,
    True,
    False,
    "",
    "x",
    "None",
    [],
    {},
    [0],
    [1, 1],
    [2, 2],
    [1, 2, 3],
    [None, None],
    [[0, 1]],
    {"x": 1},
)


# ----------------------------------------------------------------------------------------- JSON
@lru_cache(maxsize=8)
def json_in(data: bytes) -> tuple[int, int] | None:
    """The span of the first JSON object of any size; None if there is none."""
    text, at = data.decode("latin-1"), -1
    for _ in range(50):
        at = text.find("{", at + 1)
        if at < 0:
            return None
        try:
            _, end = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if end - at > 32:
            return at, end
    return None


def damaged_json(data: bytes, rng: random.Random) -> bytes:
    """A value replaced, removed, repeated or swapped; JSON inside a binary file keeps its length."""
    span = json_in(data)
    if span is None:
        return data
    start, end = span
    whole = not data[:start].strip() and not data[end:].strip()
    for _ in range(20):
        document = json.loads(data[start:end].decode("latin-1"))
        _damage_value(document, rng)
        made = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("latin-1", "replace")
        if whole or len(made) <= end - start:
            return data[:start] + made.ljust(end - start) + data[end:]
    return data


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value."""
    places, todo = [], [document]
    while todo:
        one = todo.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        places += [(one, key) for key in keys]
        todo += [one[key] for key in keys]
    return places


def _damage_value(document: Any, rng: random.Random) -> None:
    places = _places(document)
    if not places:
        return
    (container, key), (other, name) = rng.choice(places), rng.choice(places)
    value = container[key]
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, value)
        case 2:
            container[key] = json.loads(json.dumps(other[name]))
        case 3 if isinstance(value, int | float) and not isinstance(value, bool):
            container[key] = rng.choice((value + 1, value - 1, -value, value * 2, [value], str(value)))
        case 3 if isinstance(value, str) and value:
            at = rng.randrange(len(value))
            container[key] = value[:at] + rng.choice("0123456789()[],-. x") + value[at + rng.randrange(2) :]
        case _:
            container[key] = rng.choice(VALUES)


# -------------------------------------------------------------------------------------- archives
def is_archive(data: bytes) -> bool:
    return data.startswith(b"PK\x03\x04") and zipfile.is_zipfile(io.BytesIO(data))


def damaged_member(data: bytes, rng: random.Random, damage: Callable[[bytes, random.Random], bytes]) -> bytes:
    """The archive with one of its members mutated and valid checksums; unchanged if it is already invalid."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {info.filename: archive.read(info) for info in archive.infolist()}
    except Exception:
        return data
    if not files:
        return data
    name = rng.choice(list(files))
    files[name] = damage(files[name] or b"\0", rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for file, content in files.items():
            archive.writestr(zipfile.ZipInfo(file), content)
    return out.getvalue()
