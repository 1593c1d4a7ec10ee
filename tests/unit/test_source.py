"""Models from the network: fetched once, checked, never half there."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_models import gated
from tenon import frontends
from tenon.errors import FormatError, InputError
from tenon.frontends.source import read

DATA = gated().SerializeToString()
SUM = hashlib.sha256(DATA).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.path.startswith("/absent"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA) * (2 if self.path.startswith("/short") else 1)))
        self.end_headers()
        self.wfile.write(DATA)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test run quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    Handler.requests = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_fetched_once_with_progress(server: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    for _ in range(2):
        graph = frontends.load(
            f"{server}/a/net.onnx", sha256=SUM, cache=tmp_path, progress=lambda *step: seen.append(step)
        )
        assert graph.source == "net.onnx"
    assert Handler.requests == ["/a/net.onnx"]
    assert seen[-1] == (len(DATA), len(DATA))
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [DATA]


def test_a_damaged_copy_is_fetched_again(server: str, tmp_path: Path) -> None:
    read(f"{server}/net.onnx", SUM, tmp_path)
    next(tmp_path.iterdir()).write_bytes(b"damaged")
    assert read(f"{server}/net.onnx", SUM, tmp_path).data == DATA


def test_a_wrong_sum_names_both_and_leaves_nothing(server: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"{SUM}, expected {'0' * 64}"):
        read(f"{server}/net.onnx", "0" * 64, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path", "message"), [("absent", "404"), ("short", "ended|cannot be fetched")])
def test_failures_leave_nothing(path: str, message: str, server: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(f"{server}/{path}.onnx", None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be fetched"):
        read("http://127.0.0.1:9/net.onnx", None, tmp_path)


def test_partners_by_pattern(tmp_path: Path) -> None:
    for name in ("net.param", "net.bin", "other.bin", "a[1].param", "a[1].bin"):
        (tmp_path / name).write_bytes(name.encode())
    net = read(tmp_path / "net.param")
    assert net.partner("its weights", "{stem}.bin", "*.bin").data == b"net.bin"
    assert read(tmp_path / "a[1].param").partner("its weights", "{stem}.bin").name == "a[1].bin"
    assert net.partner("its weights", "{stem}.w", "*.bin", fits=lambda f: f.data == b"other.bin").name == "other.bin"
    assert net.find_partner("its weights", "{stem}.w") is None
    with pytest.raises(
        FormatError, match=r"net.param: its weights were not found; looked for net.w, \*.w in .*--weights"
    ):
        net.partner("its weights", "{stem}.w", "*.w")
    with pytest.raises(FormatError, match=r"could be any of a\[1\].bin, net.bin, other.bin; name one with --weights"):
        net.partner("its weights", "*.bin")
    with pytest.raises(FormatError, match=r"its weights must be given too: .*weights=\.\.\."):
        read(b"bytes").partner("its weights", "*.bin")


def test_a_folder_of_too_many_files(tmp_path: Path) -> None:
    for n in range(40):
        (tmp_path / f"{n}.bin").touch()
    with pytest.raises(InputError, match=r"40 files are called \*.bin"):
        read(tmp_path).matching("*.bin")
