"""Options of commands that generate text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tenon.cli.unused_options import refuse

Prompt = Annotated[
    str | None, typer.Option("--prompt", metavar="TEXT", help="The text that a language model goes on with.")
]


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How a text is generated.  Fields are named as the arguments of ``Generator.generate``."""

    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=0, help="Most tokens of the text.")] = None
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0, help="0 takes the most probable token; larger values vary the text."),
    ] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=0, help="Choose among this many most probable tokens; 0: all.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", min=0, max=1, help="Choose among the tokens whose probabilities add up to this."),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", min=0, max=1, help="Least probability of a token, relative to the most probable one."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", min=0.01, help="Divides the logits of tokens that occurred; 1: none."),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Makes choices repeatable.")] = None
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End the text before this; repeat it for several."),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option("--grammar", metavar="FILE", help="The text follows a JSON schema (.json), Lark or GBNF grammar."),
    ] = None

    def overrides(self) -> dict[str, Any]:
        """The given options, as ``Generator.generate`` takes them."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def refuse(self, why: str) -> None:
        """Raises InputError for any option that is given."""
        refuse(self.overrides(), why)
