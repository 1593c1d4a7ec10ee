"""Inputs of a network that are states: they hold what an output gave in the run before.

A model file may say so itself (resource variables).  The names that exporters give to the caches of decoders and to the
states of recurrent layers say it as well, where both have one type.  A state stays an input and an output: a program
may write and read it, but need not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tenon.errors import InputError
from tenon.network.graph.graph import Graph, Value

NONE = "none"
"""Stands for no output: the input is no state."""

_RECURRENT = (
    r"(?:.*[._/])?(?:lstm_|gru_|rnn_)?(?:h|c|hidden|cell|state|hidden_state|cell_state|memory|cache)(?:[._]?\d+)?"
)
_NAMES = tuple(
    (re.compile(before), after)
    for before, after in (
        (r"past_key_values([._].+)", r"present\1"),
        (r"past_key_values([._].+)", r"present_key_values\1"),
        (r"past([._]?\d.*|_key.*|_value.*)", r"present\1"),
        (rf"({_RECURRENT})[._]in", r"\1_out"),
        (rf"({_RECURRENT})[._]in", r"\1.out"),
        (r"(.*[._/])?in_(state|hidden|cache)(.*)", r"\1out_\2\3"),
        (r"(.*[._/])?(h|c)[._]?0?", r"\1\2n"),
        (r"(.*[._/])?(h|c)_?0", r"\1\2_n"),
        (r"(.*[._/])?state", r"\1stateN"),
    )
)
"""Names of states, and of the outputs that follow them."""


def with_states(graph: Graph, given: Mapping[str, str]) -> Graph:
    """The graph, or a copy in which more or fewer inputs are states.

    ``given`` maps inputs to the outputs that follow them, "none" for an input that is no state; a ``*`` in both stands
    for the same text, and "" for all inputs.  Other inputs are states where the model or their names say so.  The
    shapes must be bound.  Raises InputError for a name that is no input or output, and for a state whose output has
    another type.
    """
    states = {} if given.get("") == NONE else _automatic(graph)
    for before, number in _stated(graph, given):
        states = {name: other for name, other in states.items() if name != before and other != number}
        if number is not None:
            states[before] = number
    states.update(_sizes(graph, states))
    if states == graph.states:
        return graph
    new = graph.copy()
    new.states = states
    return new


def suggested(inputs: Mapping[str, object], outputs: Mapping[str, object]) -> dict[str, str]:
    """Inputs that may be states, by their names, and the only output whose name and type fit each.

    ``inputs`` and ``outputs`` have the types of those that are no states.
    """
    pairs = dict[str, str]()
    for name, type in inputs.items():
        fitting = [other for other, after in outputs.items() if after == type and _related(name, other)]
        if len(fitting) == 1 and fitting[0] not in pairs.values():
            pairs[name] = fitting[0]
    return pairs


def _automatic(graph: Graph) -> dict[str, int]:
    """The states that the model states, as far as their types are still equal, and those that have the names of
    states."""
    stated = ((v, graph.states[v.name]) for v in graph.inputs if v.name in graph.states)
    states = {value.name: number for value, number in stated if _alike(value, graph.outputs[number])}
    numbers = {value.name: number for number, value in enumerate(graph.outputs)}
    for value in graph.inputs:
        for name in _following(value.name) if value.name not in states else ():
            number = numbers.get(name, -1)
            if number >= 0 and number not in states.values() and _alike(value, graph.outputs[number]):
                states[value.name] = number
                break
    return states


def _sizes(graph: Graph, states: Mapping[str, int]) -> dict[str, int]:
    """The extents of states, which are states as well: inputs that hold the extent before a run, and the outputs with
    that after it.

    An input that holds the extent of an output cannot be one, because a run would change it.
    """
    numbers = {value.name: number for number, value in enumerate(graph.outputs)}
    fixed = {size for v in graph.outputs for _, size in graph.extents.get(v.name, ()) if size not in numbers}
    sizes = dict[str, int]()
    for name, number in states.items():
        after = dict(graph.extents.get(graph.outputs[number].name, ()))
        for axis, size in graph.extents.get(name, ()):
            if size not in fixed and after.get(axis) in numbers:
                sizes.setdefault(size, numbers[after[axis]])
    return {size: number for size, number in sizes.items() if list(sizes.values()).count(number) == 1}


def _following(name: str) -> Iterator[str]:
    """The names that the output has which follows a state of that name."""
    for before, after in _NAMES:
        if match := before.fullmatch(name):
            yield match.expand(after)


def _alike(a: Value, b: Value) -> bool:
    """Whether two values hold the same: elements of one type in one shape, on one scale."""
    return (a.type.dtype, a.type.dims) == (b.type.dtype, b.type.dims) and a.type.quant == b.type.quant


def _related(before: str, after: str) -> bool:
    """Whether two names are one but for "in", "out" and the like."""
    words = r"(?:^|[._/])(?:in|out|input|output|prev|past|old|next|new|present|updated)(?=$|[._/])"
    plain, other = (re.sub(words, "", name).strip("._/") for name in (before, after))
    return bool(plain) and other.removesuffix("n").removesuffix("N") == plain


def _stated(graph: Graph, given: Mapping[str, str]) -> Iterator[tuple[str, int | None]]:
    """The states that are given, and the numbers of their outputs."""
    inputs = {v.name: v for v in graph.inputs}
    outputs = {v.name: number for number, v in enumerate(graph.outputs)}
    for before, after in given.items():
        names = _matches(before, after, inputs) if before else {}
        if before and not names:
            raise InputError(f"state {before}: no input is called that; the model's inputs are {', '.join(inputs)}")
        for name, following in names.items():
            if following == NONE:
                yield name, None
                continue
            if following not in outputs:
                raise InputError(
                    f"state {name}: no output is called '{following}'; the model's outputs are {', '.join(outputs)}"
                )
            value = graph.outputs[outputs[following]]
            if not _alike(inputs[name], value):
                raise InputError(
                    f"state {name}: it is {inputs[name].type} and the output '{following}' {value.type}: a state "
                    "keeps its type; give both the same shape and element type, or leave the state out"
                )
            yield name, outputs[following]


def _matches(before: str, after: str, inputs: Mapping[str, Value]) -> dict[str, str]:
    """The inputs that a pattern stands for, with the names of their outputs."""
    if "*" not in before:
        return {before: after} if before in inputs else {}
    pattern = re.compile("(.*)".join(map(re.escape, before.split("*"))))
    matches = ((name, pattern.fullmatch(name)) for name in inputs)
    return {name: _filled(after, match.groups()) for name, match in matches if match}


def _filled(after: str, texts: tuple[str, ...]) -> str:
    """A pattern with these texts in place of its stars."""
    first, *rest = after.split("*")
    return first + "".join(text + part for text, part in zip(texts, rest, strict=False))
