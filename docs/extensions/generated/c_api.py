"""Pages of the C headers: each declaration with the comment before it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

INCLUDE = Path(__file__).parents[3] / "src" / "tenon" / "runtime" / "c" / "include"
HEADERS = {"tenon.h": "c", "tenon.hpp": "cpp", "tenon_device.h": "c"}
COMMENT = re.compile(r"/\*(.*?)\*/|((?:^ *//.*\n)+)", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, str]:
    """One page per header, and their index."""
    texts = {name: (INCLUDE / name).read_text(encoding="utf-8") for name in HEADERS}
    written = {f"c/{name}": _page(name, text) for name, text in texts.items()}
    rows = [f"| [`{name}`]({name}.md) | {_first_line(text)} |" for name, text in texts.items()]
    tree = ["", "```{toctree}", ":hidden:", "", *(f"{name}" for name in HEADERS), "```", ""]
    about = "The header of each bundle is described in [bundles](../../bundles.md)."
    written["c/index"] = "\n".join(
        ["# C and C++ API", "", about, "", "| header | contents |", "|---|---|", *rows, *tree]
    )
    return written


def _first_line(text: str) -> str:
    comment = COMMENT.search(text)
    return "" if comment is None else _prose(comment).partition("\n")[0]


def _page(name: str, text: str) -> str:
    """The header's comment as the introduction, then its declarations in their order with the comments before them."""
    lines = [f"# {name}", ""]
    for block in _blocks(_without_guards(text)):
        comment = COMMENT.match(block)
        code = block[comment.end() :].strip("\n") if comment else block
        if comment:
            lines += [_markdown(_prose(comment)), ""]
        if code.strip():
            lines += [f"```{HEADERS[name]}", textwrap.dedent(code.rstrip()), "```", ""]
    return "\n".join(lines)


def _blocks(text: str) -> list[str]:
    """The parts between blank lines; blank lines inside comments separate nothing."""
    joined = COMMENT.sub(lambda comment: comment[0].replace("\n\n", "\n\f\n"), text)
    return [part.strip("\n").replace("\n\f\n", "\n\n") for part in re.split(r"\n *\n", joined) if part.strip()]


def _without_guards(text: str) -> str:
    """The text without include guards, linkage blocks and definitions of export attributes."""
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(
        r"^#ifndef TENON_\w*API\n.*?^#endif\n#endif\n|^#ifndef \w+_H(PP)?\n#define \w+\n|^#endif.*\Z",
        "",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    return re.sub(r"^#include.*\n", "", text, flags=re.MULTILINE)


def _prose(comment: re.Match[str]) -> str:
    text = comment[1] if comment[1] is not None else re.sub(r"^ *// ?", "", comment[2], flags=re.MULTILINE)
    first, _, rest = text.strip().partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".strip()


def _markdown(prose: str) -> str:
    """Prose of a comment: indented parts are code."""
    parts = list[str]()
    for paragraph in prose.split("\n\n"):
        is_code = all(line.startswith("    ") for line in paragraph.splitlines())
        parts.append(f"```c\n{textwrap.dedent(paragraph)}\n```" if is_code else paragraph.replace("<", "&lt;"))
    return "\n\n".join(parts)
