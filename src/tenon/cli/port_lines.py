"""The lines of inputs and outputs that ``tenon inspect`` prints; those of many equal states are one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

_FEW = 4
"""States of one type that are listed one by one."""


class PortLine(NamedTuple):
    """A line: "input" or "output", the tensor's name and type, the other end of a state ("": it is none), and what
    else is known of it."""

    what: str
    name: str
    type: str
    state: str = ""
    more: str = ""

    def __str__(self) -> str:
        state = f"  a state: {self.state}" if self.state else ""
        return "  ".join(part for part in (self.what, self.name, self.type + state, self.more) if part)


def port_lines(ports: Sequence[PortLine]) -> Iterator[str]:
    """The lines, in the order of the ports; of more than ``_FEW`` states of one type that stand one behind another
    ("past_key_values.0.key", ...), the first and the last name and their number."""
    for is_state, run in groupby(ports, lambda port: bool(port.state) and not port.more):
        alike: dict[tuple[str, str], list[PortLine]] = {}
        for port in run:
            alike.setdefault((port.what, port.type if is_state else port.name), []).append(port)
        for (what, type), ports_alike in alike.items():
            first, last, count = ports_alike[0], ports_alike[-1], len(ports_alike)
            if count > _FEW:
                yield f"{what}  {first.name} ... {last.name}  {type}  {count} states: {first.state} ... {last.state}"
            else:
                yield from map(str, ports_alike)
