"""Commands in pages of the documentation: run in the order of the page, their output compared with what it shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIGEST = re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{12}\b")
"""The version of a bundle on a device, which every change of the code generator changes."""
TIME = re.compile(r"\b\d+(\.\d+)? (s|ms|µs|us)\b")
TOLERANCE = 0.1
"""Code grows and shrinks a little with every change to the generator; a page that is off by more has grown stale."""


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language in a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}(?: title=\S+)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """The output of a shell command; it must exit with status 0."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def alike(shown: str, now: str) -> bool:
    """Whether two outputs are equal, ignoring times, versions of bundles and, within the tolerance, differences of
    numbers."""
    ours, theirs = (DIGEST.sub("(digest)", TIME.sub("(time)", text)).split() for text in (shown, now))
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _same(a: str, b: str) -> bool:
    if a == b:  # also of "inf" and "nan", whose differences are not numbers
        return True
    try:
        x, y = (float(text.replace(",", "")) for text in (a, b))
    except ValueError:
        return False
    return abs(x - y) <= TOLERANCE * abs(y) + 1e-6


def check_page(
    page: Path, run: Callable[[str], str], *, update: bool, test: str, folder: Path | None = None
) -> list[str]:
    """Run the commands of a page: those after ``$`` in its blocks of ``console``, whose output has to be as shown, and
    the lines of its blocks of ``sh``.  Returns the outputs of the latter.

    With ``folder``, where the commands run, blocks such as ``c title=main.c`` are written there as files, blocks of
    ``diff`` are applied to files there, and blocks of ``python`` without a title are run.  ``update`` replaces the
    shown outputs instead; ``test`` is what a failure tells to run for that.
    """
    wrong, told = list[str](), list[str]()

    def checked(block: re.Match[str]) -> str:
        language, _, title = block[1].partition(" title=")
        if title and folder is not None:
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text(block[2], encoding="utf-8")
        elif language == "diff" and folder is not None:
            run(f"git apply -v --recount - <<'END_OF_BLOCK'\n{block[2]}END_OF_BLOCK")
        elif language == "python" and folder is not None:
            run(f"python - <<'END_OF_BLOCK'\n{block[2]}END_OF_BLOCK")
        elif language == "sh" and not title:
            told.extend(map(run, block[2].splitlines()))
        if language != "console":
            return block[0]
        made = ""
        for part in re.split(r"^(?=\$ )", block[2], flags=re.MULTILINE):
            if not part:
                continue
            command, shown = _command(part)
            now = run(command.removeprefix("$ "))
            if not alike(shown, now):
                wrong.append(f"{command}\n{now}")
            made += f"{command}\n" + "".join(f"{line.rstrip()}\n" for line in now.splitlines())
        return f"```console\n{made}```"

    text = page.read_text(encoding="utf-8")
    updated = re.sub(r"^```(\w+(?: title=\S+)?)\n(.*?)^```$", checked, text, flags=re.MULTILINE | re.DOTALL)
    if update:
        page.write_text(updated, encoding="utf-8")
    else:
        assert not wrong, "\n".join([f"{page.name} is stale: run {test} with --update-golden", *wrong])
    return told


def _command(part: str) -> tuple[str, str]:
    """A command, which goes on after a line that ends in a backslash, and the output shown below it."""
    lines = part.split("\n")
    end = next(i for i, line in enumerate(lines) if not line.endswith("\\")) + 1
    return "\n".join(lines[:end]), "\n".join(lines[end:])
