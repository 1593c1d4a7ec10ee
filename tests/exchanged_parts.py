"""Encrypted ``.tenon`` files whose parts were exchanged, left out or put elsewhere by somebody without the key."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

import tenon
from onnx_models import model, node
from tenon.formats.wire.encryption import seal
from tenon.runtime.bundle.container import Container, container_of
from tenon.runtime.bundle.encrypted_files import encrypt
from tenon.runtime.bundle.writer import save_container

TARGETS = ("riscv64-v", "armv7")
"""Targets beside that of this machine, in the files of ``sealed_pair``."""


def sealed_pair(folder: Path, key: bytes) -> tuple[Path, Path, Path]:
    """Two networks of the same name for three targets, encrypted with the same key, and the second one as it was."""
    paths = []
    for number in (1, 2):
        weights = np.full((64, 3), number, np.float32)
        network = model([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 64]}, ["y"], {"w": weights})
        path = folder / f"pair-{number}.tenon"
        chosen = [tenon.Options(name="net", no_tuning=True, target=target) for target in ("host", *TARGETS)]
        save_container(path, [tenon.compile(network.SerializeToString(), each) for each in chosen])
        (folder / f"sealed-pair-{number}.tenon").write_bytes(encrypt(path, key))
        paths.append(folder / f"sealed-pair-{number}.tenon")
    return paths[0], paths[1], folder / "pair-2.tenon"


def stored_parts(path: Path) -> dict[str, bytes]:
    """The parts of a file as it holds them."""
    file = Container(str(path))
    return {name: file.stored(name).tobytes() for name in file.parts}


def exchanged(first: Path, second: Path, plain: Path) -> dict[str, bytes]:
    """Files made of two encrypted ones with the same key and names of parts, and of one that is not encrypted."""
    a, b, open_parts = stored_parts(first), stored_parts(second), stored_parts(plain)
    files = [name for name in a if "/" in name]
    by_chance = random.Random(1).sample(list(a), len(a))
    other_key = seal(bytes(31) + b"x", "directory", bytes(32))
    made = {
        **{f"{name} of the other file": {**a, name: b[name]} for name in files if a[name] != b[name]},
        "all files of the other": {**a, **{name: b[name] for name in files}},
        "directory of the other": {**a, "directory": b["directory"]},
        "directory of another key": {**a, "directory": other_key},
        "no directory": {name: content for name, content in a.items() if name != "directory"},
        "empty directory": {**a, "directory": b""},
        "another order": {name: a[name] for name in by_chance},
        "a target left out": {name: content for name, content in a.items() if not name.startswith(TARGETS[0])},
        "a target renamed": {name.replace(TARGETS[0], "aarch64"): content for name, content in a.items()},
        "a target copied": {**a, **{name.replace(TARGETS[0], "mips"): a[name] for name in files}},
        "targets exchanged": {
            name.replace(TARGETS[0], "#").replace(TARGETS[1], TARGETS[0]).replace("#", TARGETS[1]): content
            for name, content in a.items()
        },
        "one more part": {**a, "x86-64/extra": a[files[0]]},
        "a short part": {**a, files[0]: a[files[0]][:20]},
        "a part that is cut": {**a, files[0]: a[files[0]][:-1]},
        "files that are not encrypted": {**a, **{name: c for name, c in open_parts.items() if name in files}},
    }
    forms = {name: container_of(parts, 2) for name, parts in made.items()}
    forms["not encrypted"] = plain.read_bytes()
    forms["not encrypted, with the encrypted parts"] = container_of({**a, **open_parts}, 1)
    return forms
