"""Files of caches that another user owns or may write are not read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tenon
from real import DIGITS
from tenon.machine.toolchain.cache import Cache
from tenon.machine.toolchain.compiler import zig
from tenon.private_files import is_private, read_private, write_private

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and permissions of files are those of POSIX")


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_files_that_others_may_write(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "entry"
    write_private(path, b"ours")
    assert read_private(path) == b"ours"
    path.write_bytes(b"theirs")
    path.chmod(mode)
    assert read_private(path) is None
    write_private(path, b"ours")
    assert read_private(path) == b"ours", "it was replaced"


def test_links_folders_and_pipes(tmp_path: Path) -> None:
    write_private(tmp_path / "entry", b"ours")
    (tmp_path / "link").symlink_to(tmp_path / "entry")
    os.mkfifo(tmp_path / "pipe")
    assert [read_private(tmp_path / name) for name in ("link", "pipe", "", "missing")] == [None] * 4
    write_private(tmp_path / "link", b"other")
    assert read_private(tmp_path / "entry") == b"ours"
    assert read_private(tmp_path / "link") == b"other"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_files_of_another_user(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put("abcd", b"object")
    (entry,) = (path for path in tmp_path.rglob("*") if path.is_file())
    os.chown(entry, 65534, -1)
    assert store.get("abcd") is None
    store.put("abcd", b"object")
    assert store.get("abcd") == b"object"
    os.chown(tmp_path, 65534, -1)
    assert not is_private(tmp_path)


def test_caches_are_written_with_any_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Cache(tmp_path / "cache")
        store.put("abcd", b"object")
    finally:
        os.umask(before)
    assert store.get("abcd") == b"object"


def test_compiling_in_a_process_that_ignores_sigchld(tmp_path: Path) -> None:
    """As a command started by a daemon, and in a Python program."""
    command = f'trap "" CHLD; exec "{sys.executable}" -m tenon compile "$0" -o "$1"'
    env = {**os.environ, "TENON_CACHE": str(tmp_path / "cache"), "TENON_NO_TUNING": "1"}
    words: list[str | Path] = ["sh", "-c", command, DIGITS / "digits.onnx", tmp_path / "net.tenon"]
    done = subprocess.run(words, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        tenon.compile(DIGITS / "digits.onnx", no_tuning=True, cache=tmp_path / "other").save(tmp_path / "other.tenon")
        compiler = zig(tmp_path / "third")
        with pytest.raises(tenon.TenonError, match="error: "):
            compiler.run({"a.c": b"int f(void) { return nothing; }"}, ("-c", "a.c"), "a.o")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (tmp_path / "other.tenon").read_bytes() == (tmp_path / "net.tenon").read_bytes()
