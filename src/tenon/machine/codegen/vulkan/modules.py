"""SPIR-V of one program with many kernels, cut into a module for each kernel.

The program's ``main`` calls the kernels' entries, one after the other.  Every module keeps what its entry reaches,
without names.  Arithmetic on floats is done as written (NoContraction): drivers reorder other sums, and take
(a + b) - b for a.  NaNs, infinities and signs of zeros are to be kept (SignedZeroInfNanPreserve): drivers take
comparisons followed by a choice for a minimum, which drops NaNs; and numbers below the normal ones (DenormPreserve),
which drivers may take for zero; floats of 16 bits are to be rounded to the nearest (RoundingModeRTE).  Hosts leave out
what a device does not offer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from struct import unpack

Instruction = tuple[int, ...]

_HEADER = 5
_ENTRY_POINT, _MODE, _DECORATE, _FUNCTION, _FUNCTION_END, _CALL, _VARIABLE = 15, 16, 71, 54, 56, 57, 59
_CAPABILITY, _EXTENSION = 17, 10
_FIRST = (_CAPABILITY, _EXTENSION, 11, 14)
"""Capabilities, extensions, imported instructions, memory model."""
_ANNOTATIONS = (71, 72)
_MATRIX_TYPE = 5358
_TYPES = (*range(19, 40), _MATRIX_TYPE)
_COMPUTE, _LOCAL_SIZE, _INPUT, _NO_CONTRACTION = 5, 17, 1, 42
_KEPT, _ROUNDED, _FLOAT64 = (4461, 4459), 4462, 10
_FLOAT16, _STORAGE16, _BINDING, _ALIASED = 9, 4433, 33, 20
_MATRICES, _MEMORY_MODEL = 5357, 5345
_CONSTANT, _WORKGROUP = 43, 4
_SHUFFLE_XOR = 346
_INT_TYPE, _FLOAT_TYPE, _VECTOR_TYPE = 21, 22, 23
_MAIN = (0x6E69616D, 0)
_LITERALS = {
    12: slice(4, 5),  # an extended instruction: its number
    21: slice(2, None),  # types: widths, numbers of elements, storage classes
    22: slice(2, None),
    23: slice(3, None),
    32: slice(2, 3),
    43: slice(3, None),  # a constant: its value
    50: slice(3, None),  # one that the host may give another value
    52: slice(3, 4),  # what is computed from such: an operation
    54: slice(3, 4),  # a function: hints
    59: slice(3, 4),  # a variable: its storage class
    61: slice(4, 5),  # loads and stores: kinds of access
    62: slice(3, 4),
    68: slice(4, None),  # the length of an array: the number of a member
    79: slice(5, None),  # vectors: numbers of elements
    81: slice(4, None),
    82: slice(5, None),
    246: slice(3, None),  # branches: hints
    247: slice(2, None),
    250: slice(4, None),
    251: slice(3, None),
    5359: slice(6, 7),  # loads and stores of matrices: kinds of access
    5360: slice(5, 6),
}
"""Where instructions have words that are not the number of a definition, by their codes."""
_ARITHMETIC = frozenset({127, 129, 131, 133, 136, 140, 141, 142})
"""Negation, sums, differences, products, quotients and remainders of floats, and products of vectors and scalars."""


def modules(words: Sequence[int], groups: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """A module for each kernel that ``main`` calls, ``groups`` being the threads of their work groups."""
    instructions = list(_instructions(words))
    functions = _functions(instructions)
    (main,) = (i[2] for i in instructions if _code(i) == _ENTRY_POINT)
    entries = [i[3] for i in functions[main] if _code(i) == _CALL]
    assert len(entries) == len(groups)
    for entry, group in zip(entries, groups, strict=True):
        made = _module(instructions, functions, entry, group)
        yield (*words[:_HEADER], *(word for instruction in made for word in instruction))


def uses_16_bits(words: Sequence[int]) -> bool:
    """Whether a module of one kernel needs a device with numbers of 16 bits."""
    return any(_code(i) == _CAPABILITY and i[1] in (_FLOAT16, _STORAGE16) for i in _instructions(words))


def uses_matrices(words: Sequence[int]) -> bool:
    """Whether a module of one kernel needs a device with cooperative matrices."""
    return any(_code(i) == _CAPABILITY and i[1] == _MATRICES for i in _instructions(words))


def uses_subgroups(words: Sequence[int]) -> bool:
    """Whether the threads of a module of one kernel exchange values without shared memory."""
    return any(_code(i) == _SHUFFLE_XOR for i in _instructions(words))


def shared_bytes(words: Sequence[int]) -> int:
    """The bytes of the arrays that the threads of a work group share, in a module of one kernel."""
    types = {_definition(i): i for i in _instructions(words) if _code(i) in (*_TYPES, _CONSTANT)}
    variables = (i for i in _instructions(words) if _code(i) == _VARIABLE and i[3] == _WORKGROUP)
    return sum(_bytes(types, types[variable[1]][3]) for variable in variables)


def _bytes(types: Mapping[int, Instruction], number: int) -> int:
    """The size of a number, a vector or an array."""
    t = types[number]
    if _code(t) in (_INT_TYPE, _FLOAT_TYPE):
        return t[2] // 8
    return _bytes(types, t[2]) * (t[3] if _code(t) == _VECTOR_TYPE else types[t[3]][3])


def _code(instruction: Instruction) -> int:
    return instruction[0] & 0xFFFF


def _instructions(words: Sequence[int]) -> Iterator[Instruction]:
    at = _HEADER
    while at < len(words):
        length = words[at] >> 16
        yield tuple(words[at : at + length])
        at += length


def _functions(instructions: Iterable[Instruction]) -> dict[int, list[Instruction]]:
    """The functions by their numbers."""
    functions, inside = dict[int, list[Instruction]](), list[Instruction]()
    for i in instructions:
        if _code(i) == _FUNCTION:
            inside = functions[i[2]] = []
        if _code(i) == _FUNCTION or inside:
            inside.append(i)
        if _code(i) == _FUNCTION_END:
            inside = []
    return functions


def _definition(instruction: Instruction) -> int:
    """The number of a type, a constant or a variable outside of functions."""
    return instruction[1 if _code(instruction) in _TYPES else 2]


def _module(
    instructions: Sequence[Instruction], functions: Mapping[int, list[Instruction]], entry: int, group: int
) -> Iterator[Instruction]:
    first = next(n for n, i in enumerate(instructions) if _code(i) in _TYPES)
    end = next(n for n, i in enumerate(instructions) if _code(i) == _FUNCTION)
    outside = {_definition(i): [i] for i in instructions[first:end]}
    main = next(i[2] for i in instructions if _code(i) == _ENTRY_POINT)
    kept = _reached({**outside, **functions}, entry)
    assert main not in kept
    inputs = [n for n in kept if n in outside and _code(outside[n][0]) == _VARIABLE and outside[n][0][3] == _INPUT]
    lacking = _unused({i[:3] for n in kept if n in outside for i in outside[n]})
    widths = _widths([i for i in instructions[:first] if i not in lacking])
    for kind in _FIRST:
        yield from (i for i in instructions[:first] if _code(i) == kind and i not in lacking)
        yield from _KEEPING.get(kind, ())
        yield from _ROUNDING.get(kind, ()) if 16 in widths else ()
    yield _instruction(_ENTRY_POINT, _COMPUTE, entry, *_MAIN, *sorted(inputs))
    yield _instruction(_MODE, entry, _LOCAL_SIZE, group, 1, 1)
    yield from (_instruction(_MODE, entry, mode, bits) for bits in widths for mode in _KEPT)
    yield from [_instruction(_MODE, entry, _ROUNDED, 16)] if 16 in widths else []
    annotations = [i for i in instructions[:first] if _code(i) in _ANNOTATIONS and i[1] in kept]
    yield from annotations
    yield from (_instruction(_DECORATE, number, _ALIASED) for number in _views(annotations))
    bodies = [i for number, body in functions.items() if number in kept for i in body]
    yield from (_instruction(_DECORATE, i[2], _NO_CONTRACTION) for i in bodies if _code(i) in _ARITHMETIC)
    yield from (i for i in instructions[first:end] if _definition(i) in kept)
    yield from bodies


def _instruction(code: int, *words: int) -> Instruction:
    return (len(words) + 1 << 16 | code, *words)


_KEEPING = {
    _CAPABILITY: [_instruction(_CAPABILITY, 4466), _instruction(_CAPABILITY, 4464)],
    _EXTENSION: [_instruction(_EXTENSION, *unpack("<6I", b"SPV_KHR_float_controls\0\0"))],
}
"""The instructions that allow modules to ask what floats keep, behind instructions of the same code."""


_ROUNDING = {_CAPABILITY: [_instruction(_CAPABILITY, 4467)]}
_STORAGE16_EXTENSION = _instruction(_EXTENSION, *unpack("<6I", b"SPV_KHR_16bit_storage\0\0\0"))


def _widths(instructions: Sequence[Instruction]) -> list[int]:
    """The bits of the floats of a module with these capabilities."""
    widths = {_FLOAT16: 16, _FLOAT64: 64}
    return sorted([32, *(bits for number, bits in widths.items() if _instruction(_CAPABILITY, number) in instructions)])


def _unused(types: Set[Instruction]) -> list[Instruction]:
    """The capabilities and extensions for numbers of 16 bits that a module of these types has no use for."""
    unused = []
    if not any(_code(t) == _FLOAT_TYPE and t[2] == 16 for t in types):
        unused.append(_instruction(_CAPABILITY, _FLOAT16))
    if not any(_code(t) == _INT_TYPE and t[2] == 16 for t in types):
        unused += [_instruction(_CAPABILITY, _STORAGE16), _STORAGE16_EXTENSION]
    return unused


def _views(annotations: Sequence[Instruction]) -> list[int]:
    """The arrays that are views of one buffer, of those that a module uses."""
    bindings = {i[1]: i[3] for i in annotations if i[2] == _BINDING}
    shared = [binding for binding, count in Counter(bindings.values()).items() if count > 1]
    return [number for number, binding in bindings.items() if binding in shared]


def _named(instruction: Instruction) -> Iterator[int]:
    """The words of an instruction that are numbers of definitions."""
    literals = range(len(instruction))[_LITERALS.get(_code(instruction), slice(0))]
    return (word for at, word in enumerate(instruction) if at and at not in literals)


def _reached(definitions: Mapping[int, list[Instruction]], entry: int) -> set[int]:
    """The definitions that the entry refers to.  Nothing else may be kept: it would count as shared memory that the
    kernel uses."""
    kept, waiting = {entry}, [entry]
    while waiting:
        named = {word for i in definitions[waiting.pop()] for word in _named(i)}
        new = (named & definitions.keys()) - kept
        kept |= new
        waiting += new
    return kept
