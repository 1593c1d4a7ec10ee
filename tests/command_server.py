"""A process that has imported Tenon and runs each command in a fork of itself: imports take most of a short command.

``python command_server.py FD`` serves requests on the socket FD, one after the other: a line of JSON with the words of
the command, its folder and environment, and its standard streams as file descriptors.  The answers are lines, too: the
number of the process, then its exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys
import traceback

MODULES = ("numpy", "onnx", "typer", "rich.console", "rich.progress", "rich.table", "tenon.pipeline", "tenon.images")
"""Nothing of ``tenon.cli``, which looks at the terminal and the environment when it is imported."""


def serve(requests: socket.socket) -> None:
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("tenon.network.ops").registry()
    gc.freeze()
    while True:
        line, streams, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not line:
            return
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            requests.close()
            _run(request, streams)
        for stream in streams:
            os.close(stream)
        requests.sendall(f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        requests.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _run(request: dict[str, object], streams: list[int]) -> None:
    """Run the console script as a process of its own would, and end."""
    status: object = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(str(request["folder"]))
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]  # a mapping of texts
        sys.argv = list(request["words"])  # type: ignore[call-overload]  # a list of texts
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream_ in (sys.stdout, sys.stderr):
            if not stream_.closed:
                stream_.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
