"""Options of ``tenon run`` for cameras, videos and sound."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tenon.cli.parse import parse_numbers
from tenon.errors import InputError
from tenon.network.graph.preprocessing import Box


@dataclass(frozen=True)
class LiveOptions:
    """Where frames and sound come from, and how long."""

    camera: Annotated[
        int | None, typer.Option("--camera", min=0, metavar="N", help="Run on the frames of this camera: 0, 1, ...")
    ] = None
    show: Annotated[bool, typer.Option("--show", help="Show the frames with the answers in a window; q ends it.")] = (
        False
    )
    frames: Annotated[int | None, typer.Option("--frames", min=1, help="Stop after this many frames.")] = None
    crop: Annotated[
        str | None,
        typer.Option("--crop", metavar="L,T,R,B", help="Use this part of the image, in pixels."),
    ] = None
    match: Annotated[
        Path | None,
        typer.Option("--match", help="Compare the image with this one: for networks that recognise faces or things."),
    ] = None
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            metavar="'KIND KEY=VALUE ...'",
            help="How a sound becomes an input: samples, mfcc, mel or model, e.g. 'mfcc window=640 step=320' "
            "(docs/howto/answers.md).",
        ),
    ] = None

    def part(self) -> Box | None:
        """The part of the image.  Raises InputError for what are not four numbers."""
        if self.crop is None:
            return None
        numbers = parse_numbers("--crop", self.crop)
        if len(numbers) != 4:
            raise InputError(f"--crop {self.crop}: write LEFT,TOP,RIGHT,BOTTOM in pixels")
        return numbers[0], numbers[1], numbers[2], numbers[3]


@dataclass(frozen=True)
class FrameSource:
    """Where frames come from (the number of a camera, or a file or address), how many at most, and the part of each
    that is used.  ``show``: in a window."""

    source: int | str
    limit: int | None = None
    crop: Box | None = None
    show: bool = False
