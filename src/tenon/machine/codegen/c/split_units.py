"""A C file split into translation units of about one size, so that a compiler can work on several at once.

The text that users get stays one file.  Functions that call each other stay together; those that the entry points
call become visible to the linker, under names that begin with the network's, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.function import PrintedFunction

_VISIBLE = "TENON_PIECE"
_SIZE = 1 << 18
"""Bytes of text: a second of compilation or two."""


@dataclass
class _Group:
    """Functions that call each other."""

    members: list[str] = field(default_factory=list)
    size: int = 0


def split(
    text: str,
    name: str,
    head: str,
    functions: Sequence[PrintedFunction],
    entries: str,
    called: Collection[str],
    attribute: str = "",
) -> list[str]:
    """The translation units of a file whose whole ``text`` is head, functions and entry points, which call the
    functions ``called``: first the entry points', then those of the functions.  Only ``text`` where that is small.

    ``name`` begins the names of visible functions, which have the ``attribute``.
    """
    count = next((n for n in (8, 4, 2) if len(text) >= n * _SIZE), 1)
    if count < 2 or len(functions) < 2:
        return [text]
    visible = [f for f in functions if f.name in called]
    renamed = "".join(f"#define {f.name} {name}_{f.name}\n" for f in visible)
    declared = "".join(f"{_VISIBLE} {f.name}{f.text.partition(' {')[0]};\n" for f in visible)
    hidden = f'#define {_VISIBLE} {attribute}__attribute__((noinline, visibility("hidden"))) void\n'
    top = f"{renamed}{head}\n{hidden}"
    bodies = (
        "\n".join(_definition(f, f.name in called) for f in functions if f.name in unit)
        for unit in _bins(_groups(functions), count)
    )
    return [f"{top}{declared}{entries}", *(top + body for body in bodies)]


def _definition(function: PrintedFunction, visible: bool) -> str:
    return f"{function.comment}{f'{_VISIBLE} ' if visible else C99.outlined}{function.name}{function.text}"


def _groups(functions: Sequence[PrintedFunction]) -> list[_Group]:
    """Functions with all that they call, directly or not; what several call joins those."""
    home: dict[str, _Group] = {}
    for function in functions:  # what a function calls was printed before it
        merged = _Group([function.name], len(function.name) + len(function.text))
        for other in function.calls:
            absorbed = home[other]
            if absorbed is not merged:
                merged.members += absorbed.members
                merged.size += absorbed.size
                for member in absorbed.members:
                    home[member] = merged
        home[function.name] = merged
    return list({id(group): group for group in home.values()}.values())


def _bins(groups: list[_Group], count: int) -> list[set[str]]:
    """The groups dealt out, the largest first, each to the bin that has least."""
    bins: list[set[str]] = [set() for _ in range(count)]
    sizes = [0] * count
    for group in sorted(groups, key=lambda g: -g.size):
        least = sizes.index(min(sizes))
        bins[least].update(group.members)
        sizes[least] += group.size
    return [members for members in bins if members]
