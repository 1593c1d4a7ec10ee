"""Runs the commands of docs/tutorials/deploy-to-a-device.md in their order and compares their output.

``--update-golden`` replaces the shown output by the current one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import yaml

from aarch64_userland import aarch64_userland
from documented import blocks, check_page, shell
from installed import environment, tenon_script
from on_targets import skip_without_device
from programs import PATH, needed
from real import ROOT, shared
from ssh_server import ssh_server

PAGE = ROOT / "docs" / "tutorials" / "deploy-to-a-device.md"
FILES = {
    "RFB-320/RFB-320.prototxt": "caffe/RFB-320/RFB-320.prototxt",
    "RFB-320/RFB-320.caffemodel": "caffe/RFB-320/RFB-320.caffemodel",
    "vww_96_float.tflite": "tflite_fp32/mlperf_tiny/vww_96_float.tflite",
    "faces.jpg": "images/rfb_faces_1.jpg",
    "photos": "images",
}


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["qemu-user", "userland"])
def test_commands_of_the_page(machine: str, tmp_path: Path, update_golden: bool) -> None:
    """The device is this machine's shell with programs under qemu-user, and a whole AArch64 userland."""
    userland = aarch64_userland(tmp_path) if machine == "userland" else None
    for package in ("cv2", "ai_edge_litert", "cryptography"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    needed("openssl")
    skip_without_device("raspberry-pi-5")
    for name, source in FILES.items():
        model = shared(f"models/{source}")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if model.is_dir():
            shutil.copytree(model, tmp_path / name, ignore=shutil.ignore_patterns("*.bmp", "*.png", "mnist"))
        else:
            shutil.copy(model, tmp_path / name)
    deployment, _ = blocks(PAGE, "yaml")
    (tmp_path / "deploy.yml").write_text(deployment)
    (tmp_path / "server").mkdir()
    path = os.pathsep.join((str(tenon_script().parent), PATH))
    env = environment(PATH=path, TENON_NO_TUNING="1")
    with ssh_server(tmp_path / "server", userland) as pi:
        (tmp_path / "devices.yml").write_text(yaml.safe_dump({"devices": {"pi": pi.keys()}}))
        check_page(
            PAGE,
            lambda line: shell(line, tmp_path, env),
            update=update_golden,
            test="tests/e2e/test_walkthrough.py",
        )
    assert (tmp_path / "person.html").stat().st_size > 10_000
