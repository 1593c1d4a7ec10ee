"""Files of spoken texts with their times: SubRip, WebVTT and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tenon.atomic_write import writing
from tenon.errors import InputError
from tenon.runtime.speech.recognizer import SpokenText

SUFFIXES = (".srt", ".vtt", ".txt")


def clock(seconds: float, point: str = ".") -> str:
    """A time as HH:MM:SS.mmm."""
    whole = round(1000 * seconds)
    return f"{whole // 3600000:02}:{whole // 60000 % 60:02}:{whole // 1000 % 60:02}{point}{whole % 1000:03}"


def write_subtitles(path: Path, texts: Sequence[SpokenText], option: str = "") -> None:
    """Write texts as a file of the kind that its ending says; ``option`` names the option that gave the path.

    Raises InputError for another ending.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise InputError(f"{option} {path}: spoken texts are written to {', '.join(SUFFIXES)} files".strip())
    if kind == ".txt":
        content = "".join(f"{each.text}\n" for each in texts)
    else:
        point = "," if kind == ".srt" else "."
        lines = [f"{clock(each.start, point)} --> {clock(each.end, point)}\n{each.text}\n" for each in texts]
        numbered = [f"{number}\n{line}" for number, line in enumerate(lines, 1)] if kind == ".srt" else lines
        content = "\n".join([*(["WEBVTT\n"] if kind == ".vtt" else []), *numbered])
    with writing(path, option) as file:
        file.write(content.encode())
