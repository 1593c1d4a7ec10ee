"""Runs the commands and programs on the pages of the documentation and compares their output with that shown there.

``--update-golden`` replaces the shown output by the current one.  Every page with programs is in one of the two tables.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from documented import check_page, shell
from installed import environment, tenon_script
from programs import PATH, needed
from real import ROOT, shared
from tenon.machine.targets import find

DOCS = ROOT / "docs"
PROGRAMS = re.compile(r"^```(?:console|sh|python|c|cpp|yaml)\b", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """The needs of a page: programs, packages, files of the collection of models by their names on the page, a host."""

    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    avx2: bool = False
    """Whether its output is that of an x86-64 with AVX2, which most machines of developers are."""
    slow: bool = False
    project: bool = False
    """Whether it changes the project's sources: it is run in a copy of them."""


RUN_HERE: dict[str, Page] = {
    "howto/accuracy": Page(packages=("PIL",), programs=("qemu-system-arm",)),
    "howto/accuracy-budget": Page(packages=("PIL",)),
    "howto/add-importer": Page(project=True, programs=("git",)),
    "howto/add-metric": Page(packages=("PIL",)),
    "howto/add-operator": Page(project=True),
    "howto/add-pass": Page(project=True, programs=("git",)),
    "howto/add-target": Page(project=True, programs=("qemu-aarch64",)),
    "howto/changing-sizes": Page(programs=("gcc",)),
    "howto/faster": Page(),
    "howto/fit-ram": Page(files={"vww_96_int8.tflite": "tflite_int8/mlperf_tiny/vww_96_int8.tflite"}),
    "howto/from-ncnn": Page(
        files={
            "RFB-320.param": "ncnn/version-RFB-320/RFB-320.param",
            "RFB-320.bin": "ncnn/version-RFB-320/RFB-320.bin",
            "faces.jpg": "images/rfb_faces_1.jpg",
        }
    ),
    "howto/from-onnxruntime": Page(packages=("onnxruntime",)),
    "howto/from-tflm": Page(packages=("PIL",), programs=("gcc",)),
    "howto/plugins": Page(programs=("gcc",), packages=("onnxruntime",)),
    "howto/protection": Page(programs=("gcc", "openssl"), packages=("cryptography",)),
    "howto/quantise": Page(packages=("PIL",)),
    "howto/state": Page(programs=("gcc",)),
    "howto/wrong-layer": Page(packages=("onnxruntime",), programs=("qemu-system-arm",), avx2=True),
    "reference/deployment": Page(packages=("onnxruntime", "PIL"), programs=("qemu-system-arm", "qemu-aarch64")),
    "reference/quantised": Page(
        files={"kws.tflite": "tflite_int8/mlperf_tiny/kws_ref_model.tflite"}, programs=("qemu-system-arm",)
    ),
    "tutorials/cluster": Page(packages=("distributed",), avx2=True, slow=True),
    "tutorials/detector-in-c": Page(
        programs=("gcc",),
        files={
            "yolo-fastest-1.1.cfg": "darknet/yolo-fastest-1.1/yolo-fastest-1.1.cfg",
            "yolo-fastest-1.1.weights": "darknet/yolo-fastest-1.1/yolo-fastest-1.1.weights",
            "coco.names": "darknet/coco.names",
            "dog.jpg": "images/darknet_dog.jpg",
        },
        avx2=True,
    ),
    "tutorials/first-hour": Page(programs=("gcc",), packages=("onnxruntime",), avx2=True),
    "tutorials/fleet": Page(programs=("openssl", "qemu-aarch64"), packages=("cryptography",), slow=True),
    "tutorials/keyword-spotting": Page(
        programs=("gcc", "qemu-system-arm", "arm-none-eabi-gcc", "make"),
        files={
            "DS_CNN_S.pb": "tensorflow_pb/kws_DS_CNN/DS_CNN_S.pb",
            "labels.txt": "tensorflow_pb/labels.txt",
            "yes.wav": "tflite_int8/micro_speech/yes_1000ms.wav",
            "no.wav": "tflite_int8/micro_speech/no_1000ms.wav",
        },
        avx2=True,
    ),
    "tutorials/language-model": Page(packages=("tokenizers", "jinja2"), programs=("gcc",)),
    "tutorials/speech": Page(packages=("tokenizers", "jinja2")),
    "tutorials/story-model": Page(programs=("qemu-system-arm",)),
    "tutorials/quantise-for-a-microcontroller": Page(
        programs=("qemu-system-arm", "arm-none-eabi-gcc", "make"), packages=("onnxruntime",)
    ),
}


RUN_BY_OTHERS = {
    "howto/devices": "unit/test_devices_file.py",
    "howto/from-glow": "unit/test_glow.py",
    "howto/from-mace": "unit/test_mace_api.py",
    "howto/from-mace-micro": "unit/test_micro_api.py",
    "howto/from-tengine": "unit/test_tengine_api.py",
    "howto/images": "e2e/test_image_entry.py",
    "reference/gpu": "e2e/test_gpu.py",
    "reference/libtenon": "unit/test_libtenon.py",
    "tutorials/android": "e2e/test_platforms.py",
    "tutorials/apple": "e2e/test_platforms.py",
    "tutorials/arduino": "e2e/test_platforms.py",
    "tutorials/browser": "e2e/test_browser.py",
    "tutorials/deploy-to-a-device": "e2e/test_walkthrough.py",
    "tutorials/esp32-c3": "e2e/test_platforms.py",
    "tutorials/linux": "e2e/test_platforms.py",
    "tutorials/nrf52840": "e2e/test_platforms.py",
    "tutorials/raspberry-pi": "e2e/test_platforms.py",
    "tutorials/rp2040": "e2e/test_platforms.py",
    "tutorials/stm32": "e2e/test_platforms.py",
    "tutorials/windows": "e2e/test_platforms.py",
    "tutorials/zephyr": "e2e/test_platforms.py",
}
"""Pages that need more than a shell, and the tests that run them."""


def copy_project(folder: Path) -> None:
    """Copy the sources, tests and scripts that a contributor works with; their environment is this one."""
    for name in ("src", "tests", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "scripts" / "install").write_text("#!/bin/sh\n")  # everything is installed


QUICK = [pytest.param(name, marks=pytest.mark.slow if page.slow else ()) for name, page in RUN_HERE.items()]


@pytest.mark.parametrize("name", QUICK)
def test_programs_of_a_page(name: str, tmp_path: Path, update_golden: bool) -> None:
    page = RUN_HERE[name]
    for program in page.programs:
        needed(program)
    for package in page.packages:
        pytest.importorskip(package)
    if page.avx2 and not find("host").name.startswith(("x86-64-avx2", "x86-64-avx512")):
        pytest.skip("the output on the page is that of an x86-64 with AVX2")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("components", "build"))
    if page.project:
        copy_project(tmp_path)
    for destination, source in page.files.items():
        (tmp_path / destination).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shared(f"models/{source}"), tmp_path / destination)
    env = environment(PATH=os.pathsep.join((str(tenon_script().parent), PATH)), TENON_NO_TUNING="1")
    env |= {"TENON_TARGET": "x86-64-avx2"} if page.avx2 else {}
    env |= {"PYTHONPATH": str(tmp_path / "src")} if page.project else {}
    try:
        check_page(
            DOCS / f"{name}.md",
            lambda line: shell(line, tmp_path, env),
            update=update_golden,
            test="tests/e2e/test_pages.py",
            folder=tmp_path,
        )
    finally:
        _end(*tmp_path.glob("*.pid"))


def _end(*files: Path) -> None:
    """End the processes that a page started and whose ids it keeps, if it failed before it ended them."""
    for file in files:
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGTERM)


def test_every_page_with_programs_is_run() -> None:
    pages = {
        p.relative_to(DOCS).with_suffix("").as_posix(): p for p in DOCS.rglob("*.md") if "generated" not in p.parts
    }
    with_programs = {name for name, path in pages.items() if PROGRAMS.search(path.read_text(encoding="utf-8"))}
    assert with_programs == {*RUN_HERE, *RUN_BY_OTHERS}
    for name, test in RUN_BY_OTHERS.items():
        text = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert name.rpartition("/")[2] in text, f"{test} does not name {name}.md"


def test_tables_have_heads() -> None:
    """A row of a table behind an empty line would be shown as text."""
    wrong = list[str]()
    for page in sorted({*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "bench").glob("*.md")}):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        tables = re.findall(r"^(?:\|.*\n?)+", text, re.MULTILINE)
        wrong += [f"{page.name}: {table[:60]}" for table in tables if not re.match(r".*\n\|[ :|-]+\|?(?:\n|$)", table)]
    assert wrong == []
