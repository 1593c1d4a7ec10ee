"""Parse option values: NAME=DIMS, NAME=FILE, lists of numbers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon.errors import InputError
from tenon.formats.wire.file_kinds import told_kind
from tenon.input_file import open_regular, read_regular
from tenon.network.graph.size_range import Size, read_dimension

if TYPE_CHECKING:
    from tenon.network.graph.graph import Array

Dims = int | Size | tuple[int | Size, ...]
Shapes = dict[str, Dims]


def parse_bindings(arguments: Sequence[str] | None) -> tuple[Shapes, ...]:
    """``x=1,3,224,224`` binds an input, ``batch=1`` a dimension; one extent without a comma is a dimension.  In place
    of a number, ``H:64..512:32`` is a size that every run chooses, and so is ``1..256`` for a dimension.

    A name given N times makes N bindings, in that order; a name given once applies to all of them.
    """
    given: dict[str, list[Dims]] = {}
    for argument in arguments or ():
        name, sep, dims = argument.rpartition("=")
        given.setdefault(name, []).append(_parse_dims(argument, name if sep else "", dims))
    counts = {len(shapes) for shapes in given.values()} - {1}
    if len(counts) > 1:
        listed = ", ".join(f"{name} {len(shapes)} times" for name, shapes in given.items())
        raise InputError(f"--shape: {listed}: give each name once, or as often as there are bindings")
    count = max(counts, default=1)
    return tuple({name: shapes[i % len(shapes)] for name, shapes in given.items()} for i in range(count))


def _parse_dims(argument: str, name: str, dims: str) -> Dims:
    if ".." not in dims:
        dims = dims.replace("x", ",")
    if not name or not dims.strip(","):
        raise InputError(f"--shape {argument}: {_DIMS}")
    parts = [part for part in dims.split(",") if part]
    try:
        extents = tuple(read_dimension(part, "" if "," in dims else name) for part in parts)
    except InputError as error:
        raise InputError(f"--shape {argument}: {error}" if ".." in dims else f"--shape {argument}: {_DIMS}") from None
    return extents if "," in dims else extents[0]


_DIMS = "write NAME=DIMS, as in input=1,3,224,224 or batch=1"


def parse_limits(arguments: Sequence[str] | None) -> dict[str, int]:
    """``durations=400``: the largest number that a value can be, by its name."""
    limits: dict[str, int] = {}
    for argument in arguments or ():
        name, _, number = argument.rpartition("=")
        if not name or not (number.isascii() and number.isdigit()) or name in limits:
            raise InputError(f"--max {argument}: write NAME=N, as in durations=400; each name once")
        limits[name] = int(number)
    return limits


def parse_binding_values(arguments: Sequence[str] | None) -> list[dict[str, Any]]:
    """``parse_values`` for each binding: a name given N times makes N, in that order; one given once is of all."""
    given: dict[str, list[str]] = {}
    for argument in arguments or ():
        given.setdefault(argument.rpartition("=")[0], []).append(argument)
    counts = {len(words) for words in given.values()} - {1}
    if len(counts) > 1:
        listed = ", ".join(f"{name} {len(words)} times" for name, words in given.items())
        raise InputError(f"--value: {listed}: give each name once, or as often as there are bindings")
    count = max(counts, default=1)
    return [parse_values([words[i % len(words)] for words in given.values()]) for i in range(count)]


def parse_values(arguments: Sequence[str] | None) -> dict[str, Any]:
    """``sr=16000``, ``flag=true``, ``x=1,2,3`` (a list), ``x=file.npy``: values of fixed inputs, by name."""
    values: dict[str, Any] = {}
    for argument in arguments or ():
        name, _, text = argument.rpartition("=")
        if not name or not text or name in values:
            raise InputError(
                f"--value {argument}: write NAME=VALUE, as in sr=16000, x=1,2,3 or x=file.npy; each name once"
            )
        if text.lower().endswith(".npy"):
            values[name] = read_array(Path(text))
            continue
        numbers = [_literal(part.strip(), argument) for part in text.split(",") if part.strip()]
        values[name] = numbers if "," in text else numbers[0] if numbers else text
    return values


def _literal(text: str, argument: str) -> bool | int | float:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise InputError(f"--value {argument}: '{text}' is neither a number, true, false nor a .npy file")


def read_array(path: Path) -> Array:
    """The array in a .npy file.  Raises InputError."""
    import numpy as np

    try:
        with open_regular(path) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{path}: its header states more elements than fit into memory") from None
    except Exception as error:  # a damaged header raises ValueError, or errors of tokenize and ast
        with open_regular(path) as file:
            head = file.read(64)
        why = error if head.startswith(b"\x93NUMPY") else told_kind(head) or "it does not begin as one"
        raise InputError(f"{path}: not a .npy file of numbers ({why}): numpy.save writes one") from None
    return np.asarray(array)


def parse_pairs(option: str, arguments: Sequence[str] | None) -> dict[str, Path]:
    """NAME=FILE arguments as a dict; a file without a name is for the only input, under the name ""."""
    pairs: dict[str, Path] = {}
    for argument in arguments or ():
        name, _, file = argument.rpartition("=")
        if not file or name in pairs:
            raise InputError(f"{option} {argument}: write NAME=FILE, each name once")
        pairs[name] = Path(file)
    return pairs


def parse_list(text: str | None) -> tuple[str, ...]:
    """``a,b``: names."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def parse_assignments(option: str, arguments: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE arguments as a dict; a value without a name applies to all, under the name ""."""
    values: dict[str, str] = {}
    for argument in arguments:
        name, _, value = argument.rpartition("=")
        if not value or name in values:
            raise InputError(f"{option} {argument}: write NAME=VALUE, each name once")
        values[name] = value
    return values


def parse_fields(option: str, text: str) -> dict[str, str]:
    """KIND KEY=VALUE ... as fields, of which "kind" is the first word."""
    try:
        kind, *pairs = shlex.split(text)
    except ValueError:
        raise InputError(f"{option} {text}: write 'KIND KEY=VALUE ...'") from None
    return {"kind": kind, **dict(pair.partition("=")[::2] for pair in pairs)}


def parse_io(text: str) -> bool:
    """Whether ``--io`` asks for integers."""
    if text not in ("model", "integer"):
        raise InputError(f"--io {text}: choose from model, integer")
    return text == "integer"


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Comma-separated numbers or fractions such as 1/255."""
    try:
        return tuple(_number(part) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{option} {text}: write numbers separated by commas, as in 123.7,116.3,103.5") from None


def _number(text: str) -> float:
    numerator, sep, denominator = text.partition("/")
    return float(numerator) / float(denominator) if sep else float(numerator)


def parse_head(text: str) -> dict[str, Any]:
    """``ssd strides=8,16 sizes=10/16,32/48 boxes=loc``: a kind, and fields of ``passes.heads.Described`` or, as text,
    of a head of ``answers``."""
    from tenon.runtime.answers.description import is_answer

    try:
        kind, *arguments = shlex.split(text)
    except ValueError:
        raise InputError(f"--head {text}: write 'KIND KEY=VALUE ...'") from None
    fields: dict[str, Any] = {"kind": kind}
    answer = is_answer(fields)
    for argument in arguments:
        name, _, value = argument.partition("=")
        if not value or name in fields:
            raise InputError(f"--head: {argument}: write 'KIND KEY=VALUE ...', each key once")
        fields[name] = value if answer else _head_value(name, value)
    return fields


def _head_value(name: str, value: str) -> object:
    if name == "strides":
        return tuple(int(v) if v.isdigit() else v for v in value.split(","))
    if name == "sizes":
        return tuple(parse_numbers("--head sizes", part.replace("/", ",")) for part in value.split(","))
    if name == "variances":
        return parse_numbers("--head variances", value)
    return parse_list(value) if name == "outputs" else value


def read_labels(path: Path) -> tuple[str, ...]:
    """The names of classes in a text file, one per line."""
    try:
        return tuple(read_regular(path).decode("utf-8").splitlines())
    except UnicodeDecodeError as error:
        raise InputError(f"--labels {path}: byte {error.start} is not UTF-8: give a text file") from None


def parse_size(option: str, text: str) -> tuple[int, int]:
    """``480x640``: height and width."""
    try:
        height, width = (int(part) for part in text.lower().split("x"))
    except ValueError:
        height = width = 0
    if not (0 < height < 1 << 15 and 0 < width < 1 << 15):
        raise InputError(f"{option} {text}: write HEIGHTxWIDTH, as in 480x640")
    return height, width


_MOST_PROCESSORS = 1 << 16


def parse_processors(text: str | None) -> tuple[int, ...]:
    """``0,1`` or ``0-3``: numbers of processors."""
    try:
        ends = [tuple(map(int, part.split("-"))) for part in text.split(",")] if text else []
        if any(not 0 <= number < _MOST_PROCESSORS for end in ends for number in end):
            raise ValueError(text)
        return tuple(n for end in ends for n in range(end[0], end[-1] + 1))
    except ValueError:
        raise InputError(f"--affinity {text}: write numbers of processors, as in 0,1 or 0-3") from None
