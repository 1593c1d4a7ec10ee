"""Download of models: caching, checksums, and no incomplete files."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_models import gated
from tenon.errors import FormatError, InputError
from tenon.formats import importers
from tenon.formats.model_files import download
from tenon.formats.model_files.model_file import read

DATA = gated().SerializeToString()
LOGIN = base64.b64encode(b"me:pa:ss word").decode()
SUM = hashlib.sha256(DATA).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.path.startswith("/absent"):
            self.send_error(404)
            return
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.end_headers()
            return
        if self.path.startswith("/private") and self.headers.get("Authorization") != f"Basic {LOGIN}":
            self.send_error(401)
            return
        if self.path.startswith("/open") and "Authorization" in self.headers:
            self.send_error(400, "credentials for somebody else")
            return
        if self.path.startswith("/other"):
            self.unusual(self.path[len("/other/") :].split(".")[0])
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA) * (2 if self.path.startswith("/short") else 1)))
        self.end_headers()
        self.wfile.write(DATA)

    def unusual(self, kind: str) -> None:
        """Replies without a length, truncated, too long, endless, slow or compressed."""
        self.send_response(200)
        if kind in ("chunked", "cut"):
            self.protocol_version = "HTTP/1.1"
            self.send_header("Transfer-Encoding", "chunked")
        if kind == "huge":
            self.send_header("Content-Length", str(1 << 60))
        if kind == "gzip":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if kind in ("chunked", "cut"):
            self.wfile.write(
                f"{len(DATA):x}\r\n".encode() + DATA + b"\r\n" + (b"0\r\n\r\n" if kind == "chunked" else b"")
            )
        elif kind == "endless":
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 16))
        elif kind == "slow":
            with contextlib.suppress(OSError):
                for byte in DATA:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
        else:
            self.wfile.write(DATA)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test run quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Handler.requests = []
    monkeypatch.setattr(download, "_uncached", {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_fetched_once_with_progress(server: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    for _ in range(2):
        graph = importers.load(
            f"{server}/a/net.onnx", sha256=SUM, cache=tmp_path, progress=lambda *step: seen.append(step)
        )
        assert graph.source == "net.onnx"
    assert Handler.requests == ["/a/net.onnx"]
    assert seen[-1] == (len(DATA), len(DATA))
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [DATA]


def test_damaged_cache_entry_is_downloaded_again(server: str, tmp_path: Path) -> None:
    read(f"{server}/net.onnx", SUM, tmp_path)
    next(tmp_path.iterdir()).write_bytes(b"damaged")
    assert read(f"{server}/net.onnx", SUM, tmp_path).data == DATA


def test_wrong_checksum_names_both_and_leaves_no_file(server: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"{SUM}, expected {'0' * 64}"):
        read(f"{server}/net.onnx", "0" * 64, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path", "message"), [("absent", "404"), ("short", "ended|cannot be fetched")])
def test_failures_leave_no_files(path: str, message: str, server: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(f"{server}/{path}.onnx", None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unreachable_server(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be fetched"):
        read("http://127.0.0.1:9/net.onnx", None, tmp_path)


def test_files_of_a_model_by_pattern(tmp_path: Path) -> None:
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


# ------------------------------------------------------------------------------------------- invalid replies
@pytest.mark.parametrize("kind", ["chunked", "plain"])
def test_replies_without_a_length(kind: str, server: str, tmp_path: Path) -> None:
    assert read(f"{server}/other/{kind}.onnx", None, tmp_path).data == DATA


def test_reply_that_may_be_incomplete_is_not_cached(server: str, tmp_path: Path) -> None:
    """Without a length a truncated reply looks complete, so the next process must download again."""
    read(f"{server}/other/plain.onnx", None, tmp_path)
    assert list(tmp_path.iterdir()) == []
    read(f"{server}/other/plain.onnx", SUM, tmp_path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [DATA]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut", "the connection ended before the file did"),
        ("huge", f"it has {1 << 60} bytes; at most"),
        ("gzip", "compressed"),
        ("endless", "it has more than 1000000 bytes"),
        ("slow", r"bytes were received within 0\.3 s"),
    ],
)
def test_replies_that_are_rejected(
    kind: str, message: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(download, "MAX_SECONDS", 0.3)
    with pytest.raises(InputError, match=message):
        read(f"{server}/other/{kind}.onnx", None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_silent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(InputError, match="timed out"):
        read(f"http://127.0.0.1:{silent.getsockname()[1]}/net.onnx", None, tmp_path)


def test_redirections(server: str, tmp_path: Path) -> None:
    assert read(f"{server}/to?/net.onnx", None, tmp_path).data == DATA
    for elsewhere in ("file:///etc/passwd", "ftp://127.0.0.1/net.onnx"):
        with pytest.raises(InputError, match="cannot be fetched"):
            read(f"{server}/to?{elsewhere}", None, tmp_path)


def test_credentials_are_used_and_not_forwarded(server: str, tmp_path: Path) -> None:
    mine = server.replace("://", "://me:pa:ss%20word@")
    assert read(f"{mine}/private.onnx", None, tmp_path).data == DATA
    assert read(f"{mine}/to?{server}/open.onnx", None, tmp_path).data == DATA
    with pytest.raises(InputError, match="401"):
        read(f"{server}/private.onnx", None, tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "HOST/absent.onnx?token=hunter2",
        "HOST/short.onnx?token=hunter2#hunter2",
        "HOST/to?ftp://me:hunter2@h/x",
        "HOST/other/gzip.onnx?hunter2",
        "HOST/damaged\x00?hunter2",
        "http://me:hunter2@[::1",
        "ftp://me:hunter2@127.0.0.1/x",
        "http://me:hunter2@127.0.0.1:9/x",
        "http://me:hunter2@127.0.0.1:port/x",
        "http://me:hunter2@ho st/x y",
    ],
)
def test_secrets_are_not_shown(url: str, server: str, tmp_path: Path) -> None:
    """Neither in the message nor in the traceback that -v prints."""
    with pytest.raises((InputError, FormatError)) as caught:
        read(url.replace("HOST", server.replace("://", "://me:hunter2@")), "0" * 64, tmp_path)
    shown = "".join(traceback.format_exception_only(caught.value))
    chained = caught.value.__cause__ or (None if caught.value.__suppress_context__ else caught.value.__context__)
    assert "hunter2" not in shown
    assert "hunter2" not in str(chained)


def test_unwritable_cache(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "cache"
    for _ in range(2):
        assert read(f"{server}/net.onnx", None, cache).data == DATA
    assert Handler.requests == ["/net.onnx"]  # cached within the process


def test_long_and_unusual_names(server: str, tmp_path: Path) -> None:
    assert read(f"{server}/{'n' * 400}.onnx", None, tmp_path).data == DATA
    assert read(f"{server}/a%2F..%2Fb.onnx", None, tmp_path).name == "b.onnx"
    assert len(list(tmp_path.iterdir())) == 2
