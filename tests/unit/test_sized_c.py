"""Inputs of changing size in C: the header, the entry point and libtenon, under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenon
from libtenon import CLIENTS, client, needed, run, sanitized_client, sdk_for_clients, succeeded
from sized import planes
from tenon.runtime.bundle import Bundle

SANITIZERS = "address,undefined"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return tenon.compile(planes(), target="x86-64", threads=2, no_tuning=True, name="net")


def test_header(bundle: Bundle) -> None:
    lines = bundle.header.splitlines()
    for line in (
        "/* A size: 4 to 24 in steps of 4. */",
        "#define NET_L_LEAST 4",
        "#define NET_L_MOST 24",
        "#define NET_L_STEP 4",
        "#define NET_a_STRIDES {120, 5, 1}",
        "#define NET_b_STRIDES {5, 1}",
        "#define NET_s_STRIDES {120, 5, 1}",
    ):
        assert line in lines
    comment = "/* The largest extents; in a run, that of axis 1 is 'L', that of axis 2 is 'W'.  Elements lie as far"
    assert sum(line.startswith(comment) for line in lines) == 2  # of a and s


def test_entry_point_never_leaves_its_memory(bundle: Bundle, tmp_path: Path) -> None:
    """Every pair of 20 sizes, most of which are no size of the network."""
    bundle.save(tmp_path / "net", ("c", "header"))
    flags = (
        "-std=gnu99",
        "-g",
        "-O1",
        f"-fsanitize={SANITIZERS}",
        "-fno-sanitize-recover=all",
        f"-I{tmp_path / 'net'}",
    )
    files = (CLIENTS / "sized_entry.c", tmp_path / "net" / "net.c")
    program = tmp_path / "program"
    succeeded(run(needed("gcc"), *flags, '-DNETWORK="net.h"', "-DTENON_ANY_FLAGS", *files, "-o", program))
    done = run(program)
    assert (done.returncode, done.stdout) == (0, b"25 375\n"), done.stderr


@pytest.mark.parametrize("sanitizers", ["", pytest.param(SANITIZERS, marks=pytest.mark.slow)])
def test_libtenon(bundle: Bundle, tmp_path: Path, sanitizers: str) -> None:
    """Shapes by input and all at once, arrays without gaps, and what does not fit."""
    if sanitizers:
        program = sanitized_client("sized", tmp_path, sanitizers)
    else:
        program = client("sized", sdk_for_clients(tmp_path, ""), tmp_path)
    path = bundle.save(tmp_path / "net.tenon")
    done = run(program, path)
    assert done.returncode == 0, done.stderr
