"""Processor affinity of threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tenon.errors import InputError
from tenon.runtime.engine.processors import Pinning, choose, of_kind

HERE = sorted(os.sched_getaffinity(0))


def machine(folder: Path, **files: dict[int, int]) -> Path:
    """A /sys/devices/system/cpu with these numbers in these files of each core."""
    for name, values in files.items():
        for core, value in values.items():
            path = folder / f"cpu{core}" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    return folder


def test_cores_by_capacity_then_by_clock(tmp_path: Path) -> None:
    arm = machine(tmp_path / "arm", cpu_capacity={0: 446, 1: 446, 2: 1024, 3: 1024})
    assert of_kind(True, {0, 1, 2, 3}, arm) == {2, 3}
    assert of_kind(False, {0, 1, 2, 3}, arm) == {0, 1}
    clocks = machine(tmp_path / "x86", cpufreq__cpuinfo_max_freq={0: 5_000_000, 1: 3_800_000})
    assert of_kind(True, {0, 1}, clocks) == {0}
    assert of_kind(False, {0, 1}, clocks) == {1}


def test_equal_or_unknown_cores_are_both_big_and_little(tmp_path: Path) -> None:
    for folder in (tmp_path, machine(tmp_path / "same", cpu_capacity={0: 1024, 1: 1024})):
        assert of_kind(True, {0, 1}, folder) == of_kind(False, {0, 1}, folder) == {0, 1}


def test_only_cores_that_this_process_may_use(tmp_path: Path) -> None:
    arm = machine(tmp_path, cpu_capacity={0: 446, 1: 446, 2: 1024})
    assert of_kind(True, {0, 1}, arm) == {0, 1}


def test_choice_of_processors() -> None:
    assert choose() == choose(cores=0) == frozenset()
    assert choose([HERE[0]]) == {HERE[0]}
    assert choose(cores="big") == choose(cores=1)
    assert choose(cores="little") == choose(cores=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"affinity": [4096]}, "no processor 4096 here"),
        ({"affinity": [HERE[0]], "cores": "big"}, "exclude each other"),
        ({"cores": "fast"}, r"choose from all \(0\), big \(1\) and little \(2\)"),
        ({"cores": 3}, "choose from all"),
        ({"cores": True}, "choose from all"),
    ],
)
def test_bad_choices(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose(**arguments)


def test_pinned_threads_are_released() -> None:
    seen: list[set[int]] = []

    def work() -> None:
        pinning = Pinning(frozenset({HERE[-1]}))
        pinning.pin()
        pinning.pin()
        seen.append(os.sched_getaffinity(0))
        pinning.release()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [{HERE[-1]}, set(HERE)]
