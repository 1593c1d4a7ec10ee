"""Exit statuses and messages that all commands share."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from command_line import run_main
from installed import tenon_script
from tenon.cli import list_targets, main
from tenon.compat.mace import __main__ as mace
from tenon.errors import BundleError, InputError
from tenon.input_file import read_regular
from tenon.runtime.bundle.container import Container


def interrupt(*words: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_interrupted_subcommand_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(list_targets, "list_targets", interrupt)
    assert run_main(main, ["targets"]) == 130
    assert capsys.readouterr().err == "tenon: interrupted; nothing was left half-written\n"


def test_interrupted_command_of_mace_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mace, "range_file", interrupt)
    assert mace.main(["quantize_stat", "--log_file", "log"]) == 130
    assert capsys.readouterr().err == "quantize_stat: interrupted; nothing was left half-written\n"


def test_closed_output_ends_a_subcommand_silently() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([tenon_script(), "targets"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_empty_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "a.tenon").touch()
    with pytest.raises(BundleError, match=r"a\.tenon is not a bundle: it is empty$"):
        Container(str(tmp_path / "a.tenon"))


def test_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it is a folder: name a file in it$"):
        read_regular(tmp_path)
