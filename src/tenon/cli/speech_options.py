"""Options of ``tenon run`` for texts that are spoken or compared, and for speech."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """Texts for networks that speak or embed them, and the language of a sound."""

    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            metavar="TEXT",
            help="A text to speak (with --output speech.wav) or to embed; several are compared with each other.",
        ),
    ] = None
    phonemes: Annotated[
        str | None, typer.Option("--phonemes", metavar="IPA", help="What to speak, as phonemes in place of a text.")
    ] = None
    language: Annotated[
        str | None,
        typer.Option("--language", metavar="CODE", help="The language of the sound or of the text to speak, e.g. en."),
    ] = None

    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Print when each part of what is said begins and ends.")
    ] = False
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Write down speech while it arrives: samples of 16 bits, 16,000 in a second, on standard input, or a "
            "file's.",
        ),
    ] = False

    @property
    def given(self) -> bool:
        """Whether there is anything to speak or to embed."""
        return bool(self.text or self.phonemes)


SILENT = SpeechOptions()
"""Nothing is spoken or written down."""
