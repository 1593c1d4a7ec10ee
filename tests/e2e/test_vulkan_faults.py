"""Vulkan devices that are not there, fail, or lack something: one message, and the processor.

A stand-in for Vulkan's loader gives the statuses of such devices (``c/faulty_vulkan.c``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tenon
from gpu_devices import needs_compiler
from gpu_faults import StandIn, faulty_vulkan
from onnx_models import model, node, random
from tenon.runtime.bundle.writer import save_container

Run = Callable[..., list[str]]

FAULTS = {
    "no driver": "there is no Vulkan driver: install that of the device (Debian's mesa-vulkan-drivers runs on the "
    "processor, too)",
    "no device": "there is no Vulkan device that runs compute shaders",
    "no memory": "Vulkan: out of memory of the device (status -2) while allocating memory of the device",
    "refused": "Vulkan: initialisation failed (status -3) while loading the kernels",
    "no int64": "the Vulkan device Stand-in has no 64-bit integers (shaderInt64), which the network needs: compile it "
    "for another target",
    "small groups": "the Vulkan device Stand-in runs 16 threads in a group, and the network has groups of ",
    "small buffers": "buffers of the Vulkan device Stand-in have at most 64 bytes, and the network needs ",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in and a bundle, of which a kernel runs in work groups and another needs int64."""
    needs_compiler("vulkan")
    folder = tmp_path_factory.mktemp("vulkan")
    nodes = [
        node("Softmax", ["x"], ["h"]),
        node("Cast", ["h"], ["half"], to=10),
        node("Cast", ["half"], ["y"], to=7),
    ]
    content = model(nodes, {"x": [4, 4096]}, ["y"]).SerializeToString()
    bundles = [tenon.compile(content, target=target, name="net", no_tuning=True) for target in ("vulkan", "x86-64")]
    save_container(folder / "net.tenon", bundles)
    return faulty_vulkan(folder)


@pytest.fixture(scope="module")
def stand_in(place: Path) -> Iterator[StandIn]:
    with StandIn(place, "TEST_VULKAN") as process:
        yield process


@pytest.fixture
def run(place: Path, stand_in: StandIn) -> Run:
    """The output of two runs, and then the calls that they make."""

    def ran(*gpu: str, target: str = "vulkan", **texts: str) -> list[str]:
        options = dict(option.split("=", 1) for option in gpu)
        return stand_in.run(place / "net.tenon", target, 2, options, **texts)

    return ran


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_device_refuses_is_one_message_and_the_processor_is_used(fault: str, run: Run) -> None:
    first, second, *_ = run(fault=fault)
    assert first.startswith(f"'net' cannot run: {FAULTS[fault]}")
    assert second == first
    assert run(fault=fault, target="vulkan,host")[:2] == ["x86-64 ran y"] * 2


def test_a_lost_device_is_one_message_and_the_next_run_tries_again(run: Run) -> None:
    """The weights, which the network does not have, would be the first to be copied."""
    lost = "'net' failed on the device: Vulkan: the device was lost (status -4) while running the network"
    ran = "vulkan ran y"
    assert run()[:2] == [ran, ran]
    assert run(fault="lost")[:2] == [lost, ran]
    assert run(fault="lost for good")[:2] == [lost, lost]


def test_pipelines_are_kept(run: Run, tmp_path: Path) -> None:
    option = f"cache={tmp_path / 'kernels'}"
    assert [line for line in run() if line.startswith("cache")] == ["cache 0"]
    assert [line for line in run(option) if line.startswith("cache")] == ["cache 0"]
    assert [line for line in run(option) if line.startswith("cache")] == ["cache 9"]
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert [line for line in run(option) if line.startswith("cache")] == ["cache 0"]


def test_priorities_are_asked_where_they_are_allowed(run: Run) -> None:
    for fault in ("", "no priorities"):
        listed = run("priority=low", fault=fault)
        assert listed[:2] == ["vulkan ran y"] * 2
        assert {"priority 128", "uses VK_EXT_global_priority"} <= set(listed)
    assert not [line for line in run() if line.startswith("priority")]


@pytest.mark.parametrize(
    ("keeps", "expected"),
    [
        ("", []),
        ("nan", ["capability 4466", "extension SPV_KHR_float_controls", "mode 4461 32"]),
        ("denorms", ["capability 4464", "extension SPV_KHR_float_controls", "mode 4459 32"]),
    ],
)
def test_shaders_ask_floats_to_keep_what_the_device_can_keep(keeps: str, expected: list[str], run: Run) -> None:
    asked = [line for line in run(keeps=keeps) if line.startswith(("capability", "extension", "mode"))]
    assert asked[: len(expected)] == expected
    assert set(asked) == set(expected)


def test_modules_of_16_bits_are_for_devices_that_have_them(run: Run) -> None:
    """Constants say what its conversions do; other modules ignore the two."""
    wanted = ("features", "constants", "capability 4433", "capability 4467", "mode 4462", "mode 4459")
    for keeps, expected in {
        "": {"constants 0 0"},
        "small rounded": {"constants 1 1"},
        "sixteen": {"features of 16 bits", "constants 0 0", "capability 4433"},
        "sixteen small": {"features of 16 bits", "constants 1 0", "capability 4433", "mode 4459 16"},
        "sixteen rounded": {
            "features of 16 bits",
            "constants 0 1",
            "capability 4433",
            "capability 4467",
            "mode 4462 16",
        },
    }.items():
        assert {line for line in run(keeps=keeps) if line.startswith(wanted)} == expected


def test_modules_of_matrices_are_for_devices_that_have_them(stand_in: StandIn, place: Path) -> None:
    """Subgroups must be as large as the kernels take them to be."""
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    content = model(nodes, {"x": [1, 64, 28, 28]}, ["y"], {"w": random(64, 64, 3, 3)}).SerializeToString()
    bundle = tenon.compile(content, target="vulkan-matrix", precision="fp16", name="net", no_tuning=True)
    path = place / "matrices.tenon"
    bundle.save(path)
    for keeps, expected in {
        "sixteen matrices": {"uses VK_NV_cooperative_matrix", "capability 5357", "capability 5345"},
        "sixteen matrices priority": {"uses VK_NV_cooperative_matrix", "capability 5357", "capability 5345"},
        "sixteen matrices 64": set(),
        "sixteen": set(),
        "matrices": set(),
    }.items():
        gpu = {"priority": "low"} if "priority" in keeps else {}
        listed = stand_in.run(path, "vulkan-matrix", 1, gpu, keeps=keeps)
        wanted = ("uses VK_NV", "capability 5357", "capability 5345")
        assert {line for line in listed if line.startswith(wanted)} == expected
