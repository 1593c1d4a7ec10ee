"""The gallery: every description renders, is complete and true, and a part of the models prints what its page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
        import gallery.__main__ as program  # type: ignore[import-not-found]
        import gallery.files as files  # type: ignore[import-not-found]
        import gallery.models as models  # type: ignore[import-not-found]
        import gallery.pages as pages  # type: ignore[import-not-found]

        yield type("Gallery", (), {"program": program, "files": files, "models": models, "pages": pages})


def folders() -> list[Path]:
    """Where models are: the folder beside the project, and those of the environment."""
    given = [Path(p) for p in os.environ.get("TENON_GALLERY_MODELS", "").split(os.pathsep) if p]
    return [folder for folder in [*given, SHARED / "models"] if folder.is_dir()]


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
    assert "pictures/" not in text  # there are none in this folder


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
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "rfb-320.png").write_bytes(b"")
    assert "![The image with the answer](pictures/rfb-320.png)" in modules.pages.page(model, None, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("title: ", "heading: "), "title"), (("sha256: ", "sha255: "), "sha255"), (("--top 3", "other.onnx"), "other"),
        (("licence: ", "licence: ''\n  name: x.onnx #"), "needs sha256, licence|reads mnist.onnx"),
    ],
)  # fmt: skip
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


QUICK = [p.stem for p in sorted((FOLDER / "models").glob("*.yaml")) if "\nquick: true" in p.read_text()]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_models_answer_what_their_pages_show(name: str, modules: Any) -> None:
    """With -m slow all of them; those of packages need TENON_GALLERY_MODELS, the folder of scripts/gallery --fetch."""
    model = modules.models.read_model(FOLDER / "models" / f"{name}.yaml")
    try:
        modules.program.check(model, folders())
    except modules.files.AbsentError as error:
        pytest.skip(f"the model's files are not here: {error}")


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
