"""The stack that functions need, from the assembly that clang prints with ``-fstack-size-section``.

A function's frame (saved registers, locals, spilled values) is a number in the section ``.stack_sizes``: after the
label of its beginning, unsigned LEB128.  It leaves out by how much a function moves the stack pointer to align an array
in the frame.  The calls are read from the instructions.  Frames along the deepest path of calls add up to a bound for
any run; generated code calls no function by a pointer and none recursively.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tenon.errors import InternalError

LIBRARY_FRAME = 256
"""Bytes allowed for a function defined elsewhere and for all that it calls: software floating point, division."""

_REALIGNED = 64 - 8
"""Most bytes that aligning an array of ``codegen.c.dialect`` in a frame takes, from an aligned stack pointer."""

_MOVES_STACK = re.compile(r"^\t(?:mov\tsp, r\d+|andi?\tsp, .*)$")
_LABEL = re.compile(r"^([A-Za-z_][\w.$]*):")
_CALL = re.compile(r"^\t(?:bl|b|b\.w|call|tail|j)\t([A-Za-z_][\w.$]*)$")
_BYTES = re.compile(r"^\t\.(byte|ascii)\t(.*)$")
_ESCAPED = re.compile(r"\\([0-7]{3})|\\(.)|(.)", re.DOTALL)
_NAMED = {"n": 10, "t": 9, "r": 13, "b": 8, "f": 12}


@dataclass(frozen=True)
class StackFrame:
    """Bytes of stack of one function, and the functions that it calls."""

    size: int
    calls: frozenset[str]


def frames(text: str) -> dict[str, StackFrame]:
    """The frames of the functions of an assembly file that state one."""
    stated: dict[str, StackFrame] = {}
    name, calls, section, padding = "", set[str](), False, 0
    for line in text.splitlines():
        code = re.split(r"\s+[@#] ", line)[0].rstrip()
        if label := _LABEL.match(code):
            name, calls, padding = label[1], set(), 0
        elif _MOVES_STACK.match(code):
            padding = _REALIGNED
        elif call := _CALL.match(code):
            calls.add(call[1])
        elif code.startswith("\t.section\t.stack_sizes"):
            section = True
        elif section and (raw := _BYTES.match(code)):
            stated[name] = StackFrame(_leb128(raw[1], raw[2]) + padding, frozenset(calls))
            section = False
    return stated


def stack_bound(functions: Mapping[str, StackFrame], entry: str) -> int:
    """The most bytes of stack that a call of ``entry`` takes.  Raises InternalError for recursive functions."""
    done: dict[str, int] = {}

    def depth(name: str, above: frozenset[str]) -> int:
        if name in above:
            raise InternalError(f"{name} calls itself: its stack has no bound")
        if name not in functions:
            return LIBRARY_FRAME
        if name not in done:
            frame = functions[name]
            done[name] = frame.size + max((depth(callee, above | {name}) for callee in frame.calls), default=0)
        return done[name]

    return depth(entry, frozenset())


def _leb128(kind: str, operand: str) -> int:
    if kind == "byte":
        return int(operand, 0)
    value = 0
    for i, (octal, named, plain) in enumerate(_ESCAPED.findall(operand[1:-1])):
        byte = int(octal, 8) if octal else _NAMED.get(named, ord(named)) if named else ord(plain)
        value |= (byte & 0x7F) << 7 * i
    return value
