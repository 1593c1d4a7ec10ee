"""Mutants of kernels with one injected fault each, made in the text form of the loop IR."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PLACE = re.compile(r"\b(\w+)\[([^][]*)\]")
_LOOP = re.compile(r"^( *(?:for|bind) [^<]*< )(min\()?(.*?)( \{| = .*)$")
_TEST = re.compile(r"(^ *if )(.*)( \{)$")
_WHEN = re.compile(r"(when\()([^;]*)(;)")
_BUFFER = re.compile(r"\b(const|global|scratch|shared|cluster|stack|register) (\w+): (\w+)\[([^][]*)\]")


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """(kind of mutation, text): indices off by one, loops longer by one, bounds, guards, stores, barriers, ends of
    groups of copies and waits removed, waits for fewer groups, another buffer of equal rank, vectors twice as wide.
    """
    head, *lines = text.splitlines()
    buffers = {name: (kind, shape.count(",")) for _, name, kind, shape in _BUFFER.findall(text)}
    spaces = {name: space for space, name, _, _ in _BUFFER.findall(text)}

    def with_line(i: int, line: str | None) -> str:
        return "\n".join([head, *lines[:i], *([] if line is None else [line]), *lines[i + 1 :], ""])

    for i, line in enumerate(lines):
        if line.lstrip().startswith(("alloc", "prefetch")):
            continue
        if line.strip() in ("barrier", "barrier cluster", "commit") or line.lstrip().startswith("wait "):
            yield line.split()[0], with_line(i, None)
        if line.strip() == "barrier cluster":
            yield "barrier", with_line(i, line.removesuffix(" cluster"))
        if line.lstrip().startswith("wait "):
            yield "wait", with_line(i, re.sub(r"\d+", lambda n: str(int(n[0]) + 1), line))
        if match := _LOOP.match(line):
            yield from _loops(i, match, with_line)
        for place in _PLACE.finditer(line):
            name, at = place[1], place[2].split(", ")
            if name not in buffers:
                continue
            for d, step in [(d, step) for d in range(len(at)) for step in (1, -1)]:
                moved = ", ".join([*at[:d], f"{at[d]} + {step}", *at[d + 1 :]])
                yield f"index {step:+}", with_line(i, f"{line[: place.start(2)]}{moved}{line[place.end(2) :]}")
            for other in buffers:
                if other != name and buffers[other] == buffers[name] and spaces[other] != "register" != spaces[name]:
                    yield "buffer", with_line(i, f"{line[: place.start(1)]}{other}{line[place.end(1) :]}")
        if (store := _PLACE.match(line.strip().removeprefix("copy "))) and store[1] in buffers:
            yield "store", with_line(i, None)
        for test in (_TEST, _WHEN):
            if match := test.search(line):
                yield "test", with_line(i, f"{line[: match.end(1)]}0 >= 0{line[match.start(3) :]}")
    if widest := max((int(n) for n in re.findall(r": \w+?x(\d+)\b", text)), default=0):
        yield "lanes", re.sub(rf"x{widest}\b", f"x{2 * widest}", text)


def _loops(i: int, match: re.Match[str], with_line: object) -> Iterator[tuple[str, str]]:
    assert callable(with_line)
    start, several, bounds, rest = match.groups()
    each = bounds.removesuffix(")").split(", ") if several else [bounds]
    for d, bound in enumerate(each):
        longer = ", ".join([*each[:d], f"{bound} + 1", *each[d + 1 :]])
        yield "bound", with_line(i, start + (f"min({longer})" if several else longer) + rest)
        if several:
            fewer = ", ".join(each[:d] + each[d + 1 :])
            yield "one bound less", with_line(i, start + (f"min({fewer})" if len(each) > 2 else fewer) + rest)
