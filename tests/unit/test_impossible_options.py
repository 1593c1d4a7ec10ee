"""Impossible options are refused before what takes long: before a model is read, and before anything is compiled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tenon
import tenon.cli
from command_line import run_main
from real import DIGITS
from tenon.atomic_write import check_writable
from tenon.errors import InputError, TenonError
from tenon.machine.targets import Target, targets
from tenon.options import EMIT, Emit
from tenon.runtime.bundle.possible_parts import usual_parts, why_impossible

MODEL = str(DIGITS / "digits.onnx")


def kind(target: Target) -> tuple[object, ...]:
    """The properties that decide which parts a target has."""
    return target.backend, target.object, target.freestanding, target.c_library


KINDS = {kind(target): target for target in targets().values()}
"""A target of each kind."""


@pytest.mark.parametrize("target", KINDS.values(), ids=lambda target: target.name)
def test_every_part_of_every_kind_of_target(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line refuses a part that the target has not, although there is no model."""
    monkeypatch.chdir(tmp_path)
    for part in EMIT:
        assert (
            run_main(tenon.cli.main, ["compile", "absent.onnx", "-o", "out", "--target", target.name, "--emit", part])
            == 2
        )
        message = capsys.readouterr().err
        why = why_impossible(part, target)
        if why:
            assert message == f"tenon: --emit {part}: {why}\n"
            assert ": " in why, "a message ends with a remedy"
        else:
            assert message.startswith("tenon: absent.onnx: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("target", KINDS.values(), ids=lambda target: target.name)
def test_parts_that_are_not_refused_are_written(target: Target, tmp_path: Path) -> None:
    """Executables are tested elsewhere, as the first one of a target builds a C library, and so are the parts of
    language models, which the digits' network is not."""
    bundle = tenon.compile(MODEL, target=target.name, no_tuning=True)
    for part in EMIT:
        if part == "exe":
            continue
        if why_impossible(part, target):
            with pytest.raises(InputError, match=f"--emit {part}"):
                bundle.save(tmp_path / part, emit=(part,))
        elif part == "text":
            with pytest.raises(InputError, match="no language model"):
                bundle.save(tmp_path / part, emit=(part,))
        else:
            files = list(bundle.save(tmp_path / part, emit=bundle.parts_with((part,))).iterdir())
            assert len(files) > 1 or part == "manifest"


def test_usual_parts() -> None:
    every: dict[str, tuple[Emit, ...]] = {name: usual_parts(target) for name, target in targets().items()}
    assert every["x86-64"] == ("c", "header", "object", "weights", "library", "manifest")
    assert every["cortex-m4"] == ("c", "header", "object", "weights", "weights-text", "manifest")
    assert every["wasm32"] == ("c", "header", "object", "weights", "library", "manifest")
    assert every["null"] == ("c", "header", "weights", "manifest")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run_main(tenon.cli.main, words) == 2
    said = capsys.readouterr()
    assert not said.out
    return said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--emit", "html,bogus", "-o", "out"], "cannot emit 'bogus': choose from c, header"),
        (
            ["--target", "cortex-m4", "-o", "net.tenon"],
            "net.tenon: target cortex-m4 has no library",
        ),
        (["--target", "nosuch", "-o", "out"], "no target 'nosuch'"),
        (["-o", "full"], "full is not empty and not a bundle"),
        (["-o", "file.txt"], "file.txt is a file: name a folder"),
        (["-o", "file.txt/net"], "file.txt is a file: choose another folder"),
        (["--target", "cortex-m4", "--threads", "4", "-o", "out"], "target cortex-m4 has no threads"),
        (["--compiler", "no-such-gcc", "-o", "out"], "there is no C compiler 'no-such-gcc'"),
        (["--report", "full", "-o", "out"], "--report full: cannot be written (Is a directory)"),
        (["--report", "file.txt/a.html", "-o", "out"], "--report file.txt/a.html: cannot be written (Not a directory)"),
        (["--labels", "absent.txt", "-o", "out"], "absent.txt: No such file or directory"),
    ],
)
def test_compile_refuses_before_reading_the_model(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("of somebody")
    (tmp_path / "file.txt").write_text("a file")
    assert message in refused(["compile", "absent.onnx", *words], capsys)


def test_run_refuses_before_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(*given: object, **named: object) -> None:
        raise AssertionError("compiled first")

    monkeypatch.setattr(tenon, "compile", compiled)
    monkeypatch.setenv("TENON_CACHE", str(tmp_path / "cache"))  # nothing is compiled already
    monkeypatch.chdir(tmp_path)
    assert refused(["run", MODEL, "absent.jpg"], capsys) == "tenon: absent.jpg: No such file or directory\n"
    (tmp_path / "out").mkdir()
    text = refused(["profile", MODEL, "--html", "out"], capsys)
    assert "--html out: cannot be written" in text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_places(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        check_writable(tmp_path / "a.html", "--html")


def test_writable_places(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder" / "a.html")
    (tmp_path / "a.html").write_text("")
    check_writable(tmp_path / "a.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html"]


def test_deployment_files_refuse_before_compiling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second target is impossible, and no bundle is made for the first."""
    (tmp_path / "deploy.yml").write_text(f"models: {{net: {{model: {MODEL}, emit: [exe]}}}}")
    words = ["convert", "--config", str(tmp_path / "deploy.yml"), "-o", str(tmp_path / "out")]
    text = refused([*words, "--target", "x86-64", "--target", "cortex-m4"], capsys)
    assert "--emit exe: target cortex-m4 has no operating system" in text
    assert not (tmp_path / "out").exists()


def test_compile_checks_the_parts_of_its_options() -> None:
    with pytest.raises(TenonError, match="--emit html"):
        tenon.compile("absent.onnx", target="cortex-m4", emit=("html",))
