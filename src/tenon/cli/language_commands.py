"""Subcommands for language models: conversations, and a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenon.cli.generation_options import GenerationOptions, Prompt
from tenon.cli.groups import with_groups
from tenon.cli.option_groups import Model, PrintOptions, RunOptions, SignatureOptions, ThreadOptions


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    app.command("chat")(chat_command)
    app.command("serve")(serve_command)


@with_groups
def chat_command(
    *,
    model: Model,
    signed: SignatureOptions,
    prompt: Prompt = None,
    image: Annotated[
        list[Path] | None, typer.Option("--image", help="An image of the first message; may be given several times.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="Instructions in front of the conversation.")
    ] = None,
    generation: GenerationOptions,
    threads: ThreadOptions,
    options: RunOptions,
    printing: PrintOptions,
) -> None:
    """Talk to a language model: each line is a message, and the answer is printed as it is generated."""
    from tenon.cli.conversations import chat

    signed.demand_bundles(model.model)
    given = (options.overrides(), threads.selected())
    chat(model.source(), *given, prompt, system, image or (), generation.overrides(), as_json=printing.json)


@with_groups
def serve_command(
    *,
    model: Model,
    signed: SignatureOptions,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port to listen at; 0: a free one.")] = 8080,
    queue: Annotated[int, typer.Option("--queue", min=0, help="Requests that may wait for their turn.")] = 16,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most tokens of the text.")] = None,
    threads: ThreadOptions,
    options: RunOptions,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show more: what was tried, and the traceback of an error.")
    ] = False,
) -> None:
    """Answer HTTP requests as OpenAI's API does: completions, chat completions, embeddings and models."""
    from tenon.cli.serve import serve

    signed.demand_bundles(model.model)
    given = (options.overrides(), threads.selected())
    serve(model.source(), *given, host, port, queue=queue, max_tokens=max_tokens)
