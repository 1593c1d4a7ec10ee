"""``tenon serve``: a language model behind HTTP."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon.cli.console import note
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.errors import InputError

if TYPE_CHECKING:
    from tenon.network.graph.graph import Graph


def serve(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    host: str,
    port: int,
    *,
    queue: int,
    max_tokens: int | None,
) -> None:
    """Answer requests until the process is ended.  Raises InputError for an address that cannot be used."""
    try:
        import uvicorn
    except ImportError:
        raise InputError("the server needs the package uvicorn: pip install starlette uvicorn") from None
    from tenon.cli.image_texts import has_tower, opened_tower, without_tower
    from tenon.runtime.generation.embedder import Embedder
    from tenon.runtime.generation.generator import Generator, language_of
    from tenon.runtime.generation.image_generator import ImageGenerator
    from tenon.runtime.text.tokenizer import TextTokenizer
    from tenon.tools.server.app import ServerLimits, application

    def check(graph: Graph) -> None:
        if graph.text is not None and graph.text.kind == "encoder":
            TextTokenizer.of(graph.text)
        else:
            language_of(graph.text, source.name)

    with _listening(host, port) as listener, ExitStack() as stack:
        name, language = Path(source.name).stem, without_tower(source)
        engine = stack.enter_context(open_engine(language, options, threads, check=check))
        model: Embedder | Generator
        if engine.text is not None and engine.text.kind == "encoder":
            model = Embedder(engine)
        elif engine.text is not None and engine.text.image is not None and has_tower(source):
            model = ImageGenerator(engine, stack.enter_context(opened_tower(source, options, threads)))
        else:
            model = Generator(engine)
        served = application(model, name, ServerLimits(queue, max_tokens))
        settings = uvicorn.Config(served, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        shown = f"[{host}]" if ":" in host else host
        note(f"{name} answers at http://{shown}:{listener.getsockname()[1]}/v1 (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):  # which uvicorn raises again once it has ended
            uvicorn.Server(settings).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: {error.strerror or error}") from error
