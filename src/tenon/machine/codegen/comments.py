"""Comments of generated C: text of a model's author made harmless, what kernels compute, which layer a call is of."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.kernel_ir.loops import Buffer, Kernel
from tenon.machine.plan.program import Call

LONGEST = 120
"""Characters of a layer's name in a comment."""

_ROLES = {"const": "Reads", "global": "Writes", "scratch": "Scratch memory:"}


def harmless(text: str, longest: int = LONGEST) -> str:
    """``text`` as one line inside a C comment, in ASCII.

    What could end the comment, begin another or continue its line (``*``, a backslash, a second ``?`` of a
    trigraph) and everything that is not printable ASCII is written as ``\\x2a`` or ``\\u{3b1}``.
    """
    shown = "".join(
        c if " " <= c <= "~" and c not in "*\\" and not (c == "?" and text[i - 1 : i] == "?") else _escaped(c)
        for i, c in enumerate(text[: longest + 1])
    )
    return f"{shown[:longest]} ..." if len(shown) > longest else shown


def _escaped(c: str) -> str:
    return f"\\x{ord(c):02x}" if ord(c) < 128 else f"\\u{{{ord(c):x}}}"


def kernel_comment(kernel: Kernel) -> str:
    """The comment of a kernel: its computation, and the buffers that it is given."""
    lines = [f"{kernel.about or kernel.name}."]
    for space, role in _ROLES.items():
        if names := [_shown(b) for b in kernel.params if b.space == space]:
            lines.append(f"{role} {', '.join(names)}.")
    return "/* " + "\n   ".join(lines) + " */\n"


def part_comment(kernel: str, about: str) -> str:
    """The comment of a function that a kernel calls."""
    return f"/* Part of {kernel}: {about}. */\n"


def call_comment(call: Call) -> str:
    """``call_facts`` as a comment of C."""
    return f"/* {call_facts(call)} */"


def call_facts(call: Call) -> str:
    """The layer of a kernel call: its name, its operator, its output's shape, attributes that matter."""
    facts = call.facts
    words = [f"{harmless(call.layer)}: {harmless(call.op)} -> {list(facts.output)}"]
    if call.clears:
        return f"{words[0]}: zeros around the output"
    if facts.filter:
        words.append("x".join(map(str, facts.filter)))
    for name, values, usual in (
        ("strides", facts.strides, 1),
        ("pads", facts.pads, 0),
        ("dilations", facts.dilations, 1),
    ):
        if any(v != usual for v in values):
            words.append(f"{name} {_alike(values)}")
    if facts.group > 1:
        words.append(f"groups {facts.group}")
    return ", ".join(words)


def _alike(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def _shown(b: Buffer) -> str:
    """A buffer's name, type and shape; extents of 1 in front say nothing."""
    extents = [repr(e) for e in b.shape]
    while len(extents) > 1 and extents[0] == "1":
        del extents[0]
    return f"{b.name} {b.type}" + "".join(f"[{extent}]" for extent in extents)
