"""One bundle on seven machines: the same C, the same answers, to the bit."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import handmade
from tenon.codegen.backend import TextUnit
from tenon.engine.emulate import Emulator, emulate
from tenon.errors import InputError, ToolchainError
from tenon.targets import find

X = np.linspace(-3, 3, 10, dtype=np.float32).reshape(1, 10)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _skip_without(target: str) -> None:
    runner = find(target).runner[:1]
    if runner == ("wasmtime",):
        if importlib.util.find_spec("wasmtime") is None:
            pytest.skip("no wasmtime here: pip install wasmtime")
    elif runner and shutil.which(runner[0]) is None:
        pytest.skip(f"no {runner[0]} here")


@pytest.mark.parametrize("target", ["x86-64", "aarch64", "armv7", "riscv64", "riscv64-v", "wasm32", "cortex-m7"])
def test_answers_are_the_same_everywhere(target: str, cache: Path) -> None:
    _skip_without(target)
    emulator = Emulator(handmade.bundle(target, cache, rounds=3))
    # halves and small integers: every step is exact, so fused and separate multiply-adds agree
    feeds = [np.round(X + i) for i in range(3)]
    for feed, answer in zip(feeds, emulator.run([{"x": feed} for feed in feeds]), strict=True):
        np.testing.assert_array_equal(answer["y"], handmade.expected(feed, 3))


@pytest.mark.parametrize("target", ["aarch64", "cortex-m7"])
def test_missing_emulator_names_the_package(target: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ToolchainError, match=r"apt-get install qemu-(user|system-arm)"):
        Emulator(handmade.bundle(target, cache))


@pytest.mark.parametrize("target", ["aarch64", "wasm32", "cortex-m7"])
def test_failure_of_the_network_is_told(target: str, cache: Path) -> None:
    _skip_without(target)
    bundle = handmade.bundle(target, cache)
    bundle = replace(bundle, unit=TextUnit(bundle.source.replace("return 0;", "return 7;")))
    with pytest.raises(ToolchainError, match=r"the network failed|returned 7"):
        emulate(bundle, X)


def test_arithmetic_that_a_small_processor_lacks() -> None:
    """Linked with zig's compiler_rt, which the user's cache keeps: seconds, the first time."""
    _skip_without("cortex-m7")
    bundle = handmade.bundle("cortex-m7")
    divide = "volatile int64_t n = 100, d = 7; *(float *)(mutableWeight + 64) = (float)(n / d);\n  return 0;"
    answer = emulate(replace(bundle, unit=TextUnit(bundle.source.replace("return 0;", divide))), X)
    assert answer["y"][0, 0] == 14


def test_feeds_are_checked(cache: Path) -> None:
    _skip_without("wasm32")
    with pytest.raises(InputError, match="float64"):
        emulate(handmade.bundle("wasm32", cache), X.astype(np.float64))
