"""Saved bundles as parts of programs for other machines: the code of a shared library as an object."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import handmade
from on_targets import skip_without_device
from tenon.errors import BundleError, InputError, ToolchainError
from tenon.machine.targets import find
from tenon.options import Options
from tenon.runtime.bundle.libraries import linkable_library
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.saved_bundle import SavedBundle

X = np.round(np.linspace(-3, 3, 10, dtype=np.float32)).reshape(1, 10)

IMPORTS = """
float floorf(float x);
static float (*volatile round_down)(float) = floorf;
static const float *volatile scale = (const float[]){2.0f};
"""
"""A pointer to a function of the C library, and one to data of the library itself: relocations of two kinds."""


@pytest.mark.parametrize(
    "target", ["host", "aarch64", *(pytest.param(t, marks=pytest.mark.slow) for t in ("armv7", "armv6", "riscv64"))]
)
def test_a_library_gives_what_its_bundle_does(target: str, tmp_path: Path) -> None:
    skip_without_device(target)
    made = handmade.bundle(target, rounds=3)
    text = made.source.replace("static void kernel", f"{IMPORTS}\nstatic void kernel", 1)
    text = text.replace("y[i] = x[i] * 2.0f + w[i]", "y[i] = round_down(x[i]) * *scale + w[i]")
    made = handmade.with_source(made, text)
    made.save(tmp_path / "bundle", emit=("weights", "library"))
    device = RemoteBundle(SavedBundle(tmp_path / "bundle", Options()))
    np.testing.assert_array_equal(device.run([X])[0]["y"], handmade.expected(X, 3))


def test_the_object_is_used_where_it_is_saved(tmp_path: Path) -> None:
    made = handmade.bundle("host")
    made.save(tmp_path / "bundle", emit=("weights", "object"))
    saved = SavedBundle(tmp_path / "bundle", Options())
    assert saved.object == made.object
    np.testing.assert_array_equal(RemoteBundle(saved).run([X])[0]["y"], handmade.expected(X))
    (tmp_path / "bundle" / "affine.o").write_bytes(made.object[:-1])
    with pytest.raises(BundleError, match=r"affine\.o is damaged"):
        _ = SavedBundle(tmp_path / "bundle", Options()).object
    made.save(tmp_path / "bundle", emit=("weights", "c"))
    with pytest.raises(InputError, match="was saved without code: save it with its object or library"):
        _ = SavedBundle(tmp_path / "bundle", Options()).object


def test_a_file_of_several_targets(tmp_path: Path) -> None:
    handmade.bundle("host").save(tmp_path / "net.tenon")
    saved = SavedBundle(tmp_path / "net.tenon", Options())
    np.testing.assert_array_equal(RemoteBundle(saved).run([X])[0]["y"], handmade.expected(X))
    with pytest.raises(BundleError, match="none for aarch64"):
        SavedBundle(tmp_path / "net.tenon", Options(), "aarch64")


def test_libraries_that_cannot_be_linked() -> None:
    made = handmade.bundle("x86-64")
    target, library = find("x86-64"), made.library
    for content, words in (
        (b"MZ" + library[2:], "no ELF file"),
        (library[:100], "damaged shared library"),
        (library[:18] + struct.pack("<H", 22) + library[20:], "save the bundle with its object"),
    ):
        with pytest.raises(ToolchainError, match=words):
            linkable_library(made.compiler, target, content)
