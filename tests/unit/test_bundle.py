"""Bundles on disk: contents, header, manifest, and atomic writes."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import handmade
import tenon
from real import DIGITS
from tenon.errors import BundleError, InputError, InternalError, ToolchainError
from tenon.machine.codegen.c.entry_points import entry_points
from tenon.machine.plan.program import Port
from tenon.network.graph.types import DType, tensor
from tenon.options import Emit
from tenon.runtime.bundle import Bundle, read_manifest
from tenon.runtime.bundle.checksum import checksum
from tenon.runtime.bundle.header import NETWORK_MACROS, TENSOR_MACROS, header
from tenon.runtime.bundle.names import LONGEST, identifier, unique
from tenon.runtime.bundle.weights import weights_text


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def bundle(cache: Path) -> Bundle:
    return handmade.bundle(cache=cache)


# ------------------------------------------------------------------------------------------------ names, header
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("digits", "digits"),
        ("mobilenet-v1 (1.0)", "mobilenet_v1_1_0"),
        ("3d", "model_3d"),
        ("", "model"),
        ("день", "model"),
        ("int", "int_model"),
        ("log", "log_model"),
        ("expf", "expf_model"),
        ("cabsl", "cabsl_model"),
        ("main", "main_model"),
        ("uint8_t", "uint8_t_model"),
        ("tenon", "tenon_model"),
        ("__x__", "x"),
    ],
)
def test_identifier(text: str, name: str) -> None:
    assert identifier(text) == name


@given(st.text(max_size=100))
def test_identifiers_are_valid_and_stable(text: str) -> None:
    name = identifier(text)
    assert name.isidentifier()
    assert name.isascii()
    assert identifier(name) == name
    assert len(name) <= LONGEST + len("_model")


def test_unique_names() -> None:
    taken: set[str] = set()
    assert [unique(text, taken) for text in ("a.b", "a/b", "a_b", "", "a_b_2")] == [
        "a_b",
        "a_b_2",
        "a_b_3",
        "tensor",
        "a_b_2_2",
    ]


def _header_with_bad_names() -> str:
    """A header whose tensors have every kind of bad name, and one without dimensions."""
    names = ['q"uo\\te', "a/b", "a.b", "a_b_BYTES", "MEM_ALIGN", "täst\n??=", "", "INPUTS", "int"]
    ports = tuple(Port(name, tensor(DType.F32, 2), 64 * i) for i, name in enumerate(names))
    scalar = Port("scalar", tensor(DType.I64), 64 * len(names))
    program = replace(handmade.program(), inputs=(*ports, scalar), outputs=())
    return header(program, [entry_points(program, profiled=False)])


USER = """\
#include "affine.h"
#include "affine.h"
typedef struct { const char *name, *type; int offset, bytes, rank, extents[4]; } row;
#define ROW(name, type, ...) {name, #type, __VA_ARGS__},
#define NO_BRACES(name, type, offset, bytes, rank, ...) {name, #type, offset, bytes, rank, {__VA_ARGS__}},
static const row rows[] = {AFFINE_INPUTS(NO_BRACES)};
TENON_MEM_ALIGN(AFFINE_MEM_ALIGN) static uint8_t memory[AFFINE_PEAK_MEM_SIZE];
int use(void);
int use(void) { return affine(memory, TENON_GET_ADDR(memory, AFFINE_a_b), memory) + rows[0].offset; }
"""


@pytest.mark.parametrize("language", ["c99", "c++11"])
@pytest.mark.parametrize("program", ["gcc", "clang"])
def test_header_is_c_and_cpp(language: str, program: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    (tmp_path / "affine.h").write_text(_header_with_bad_names())
    (tmp_path / "use.c").write_text(USER)
    kind = "c++" if language == "c++11" else "c"
    command = [program, f"-std={language}", "-x", kind, "-Wall", "-Wextra", "-Werror", "-pedantic", "-c", "use.c"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_macros_of_a_header_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "bundles.md").read_text()
    macros = [f"NET_{name}" for name in NETWORK_MACROS if name != "H"]
    tensors = [f"NET_x{end}" for end in (*TENSOR_MACROS, "_INITIAL")]
    assert [name for name in (*macros, *tensors) if name not in page] == []


def test_macros_of_a_header_are_unique() -> None:
    names = [
        line.split()[1].split("(")[0] for line in _header_with_bad_names().splitlines() if line.startswith("#define")
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["tanh", "expf", "int", "tenon_net"])
def test_names_that_c_has(name: str) -> None:
    with pytest.raises(InputError, match=rf"name={name} is reserved in C: {name}_model would do \(--name\)"):
        tenon.compile(DIGITS / "digits.onnx", name=name)


def test_entry_must_be_an_identifier(cache: Path) -> None:
    with pytest.raises(InternalError, match="int_model"):
        handmade.bundle(cache=cache, name="int")


# ---------------------------------------------------------------------------------------------------- contents
def test_weights_text_is_an_initialiser() -> None:
    raw = np.random.default_rng(0).integers(0, 256, 101, np.uint8).tobytes()
    lines = weights_text(raw).decode().splitlines(keepends=True)
    assert max(map(len, lines)) <= 110
    assert bytes(int(item, 16) for item in "".join(lines).replace("\n", "").split(",")[:-1]) == raw


def test_contents(bundle: Bundle, tmp_path: Path) -> None:
    folder = bundle.save(tmp_path / "new" / "out")
    present = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = read_manifest(folder)
    assert present.keys() == {
        "affine.c",
        "affine.h",
        "affine.o",
        "affine.weights.bin",
        "libaffine.so",
        "manifest.json",
    }
    assert present["affine.weights.bin"] == handmade.weights().tobytes()
    assert manifest.files.keys() == present.keys() - {"manifest.json"}
    for name, record in manifest.files.items():
        assert record.sha256 == hashlib.sha256(present[name]).hexdigest()
        assert record.checksum == checksum(present[name])
        assert record.bytes == len(present[name])
    assert manifest.size is not None
    assert manifest.size.code > 0
    assert (manifest.memory.peak, manifest.memory.bound) == (144, 40)
    assert manifest.nodes[0].layer == "layer/1"
    assert manifest.kernels == {"affine": 1}
    assert manifest.origin is not None
    assert str(tmp_path) not in manifest.text()
    assert json.loads(manifest.text()) == json.loads(present["manifest.json"])


@pytest.mark.parametrize("target", ["host", "aarch64", "wasm32", "cortex-m7", "null"])
def test_builds_are_byte_identical(target: str, tmp_path: Path) -> None:
    contents = []
    for place in ("a", "b"):
        folder = handmade.bundle(target, tmp_path / place / "cache").save(tmp_path / place / "out")
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("target", "files"),
    [
        ("wasm32", {"affine.o", "affine.wasm"}),
        ("cortex-m7", {"affine.o"}),
        ("null", set[str]()),
        ("aarch64", {"affine.o", "libaffine.so"}),
    ],
)
def test_machine_code_files_of_each_target(target: str, files: set[str], cache: Path, tmp_path: Path) -> None:
    folder = handmade.bundle(target, cache).save(tmp_path / "out")
    text = {"affine.c", "affine.h", "affine.weights.bin", "affine.weights.txt", "manifest.json"}
    assert {path.name for path in folder.iterdir()} - text == files


@pytest.mark.parametrize(
    ("target", "emit", "error", "words"),
    [
        ("null", "object", InputError, "target null has no machine code"),
        ("cortex-m7", "library", InputError, "target cortex-m7 has no system that loads libraries"),
        ("cortex-m7", "exe", InputError, "no operating system"),
        ("null", "exe", InputError, "no machine code"),
        ("host", "novel", InputError, "cannot emit 'novel': choose from c, header"),
    ],
)
def test_emit_options_that_are_rejected(
    target: str, emit: Emit, error: type[Exception], words: str, cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        handmade.bundle(target, cache).save(tmp_path / "out", (emit,))
    assert list(tmp_path.iterdir()) == []


def test_emit_comes_from_the_options_too(cache: Path, tmp_path: Path) -> None:
    folder = handmade.bundle(cache=cache, emit=("header",)).save(tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {"affine.h", "manifest.json"}


def test_weights_as_text_are_added_on_request(bundle: Bundle, tmp_path: Path) -> None:
    folder = bundle.save(tmp_path / "out", bundle.parts_with(("weights-text",)))
    assert (folder / "affine.weights.txt").read_bytes() == weights_text(bundle.weights)
    assert (folder / "libaffine.so").exists()


# ------------------------------------------------------------------------------------------- whole or not at all
def _snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_existing_bundle_is_replaced(bundle: Bundle, tmp_path: Path) -> None:
    bundle.save(tmp_path / "out")
    bundle.save(tmp_path / "out", ("c",))
    assert _snapshot(tmp_path).keys() == {"out/affine.c", "out/manifest.json"}


def test_empty_folder_is_used(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    bundle.save(tmp_path / "out", ("c",))
    assert (tmp_path / "out" / "affine.c").exists()


@pytest.mark.parametrize("kind", ["foreign folder", "foreign file inside", "file"])
def test_other_files_and_folders_are_not_overwritten(bundle: Bundle, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "foreign folder":
        out.mkdir()
        (out / "thesis.tex").write_text("mine")
    else:
        bundle.save(out)
        (out / "notes.txt").write_text("mine")
    before = _snapshot(tmp_path)
    with pytest.raises(InputError, match=r"not empty and not a bundle|notes\.txt|is a file"):
        bundle.save(out)
    assert _snapshot(tmp_path) == before


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("failing", ["write_bytes", "rename"])
@pytest.mark.parametrize("older", [True, False])
def test_error_or_interrupt_keeps_the_previous_bundle(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, failing: str, older: bool
) -> None:
    out = tmp_path / "deep" / "er" / "out"
    if older:
        bundle.save(out, ("c",))
    assert bundle.library  # compiled before the disk is full
    before, real = sorted(tmp_path.rglob("*")), getattr(Path, failing)

    def fail(self: Path, argument: object) -> object:
        if "weights.bin" in self.name or (failing == "rename" and self.name != "out" and not self.name.endswith("old")):
            raise error
        return real(self, argument)

    monkeypatch.setattr(Path, failing, fail)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else InputError) as caught:
        bundle.save(out)
    if caught.type is InputError:
        assert "No space left on device" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_without_write_permission(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"cannot write .*out: Permission denied: choose a folder"):
        bundle.save(tmp_path / "out", ("c",))
    assert list(tmp_path.iterdir()) == []


def test_compiler_errors_write_nothing(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError):
        handmade.with_source(bundle, "int affine(").save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------------ manifest
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is damaged"),
        ("[]", "is damaged at top level"),
        ("{", "is damaged"),
        ("\xff", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ('{"format": 2}', "has format 2 and this Tenon reads 1: install a newer"),
        ('{"format": 0}', "has format 0 and this Tenon reads 1: compile the model again"),
        ('{"format": 1}', "is damaged at tenon"),
    ],
)
def test_damaged_manifest(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(BundleError, match=words):
        read_manifest(tmp_path)


def test_manifest_names_only_files_of_its_folder(bundle: Bundle, tmp_path: Path) -> None:
    folder = bundle.save(tmp_path / "out", ("c",))
    content = (folder / "manifest.json").read_text()
    for name in ("../affine.c", "/etc/passwd", "..", ""):
        (folder / "manifest.json").write_text(content.replace('"affine.c"', json.dumps(name)))
        with pytest.raises(BundleError, match="is not a plain file name"):
            read_manifest(folder)


def test_only_code_is_executable(bundle: Bundle, tmp_path: Path) -> None:
    folder = bundle.save(tmp_path / "out")
    runnable = {path.name for path in folder.iterdir() if path.stat().st_mode & stat.S_IXUSR}
    assert runnable == {"libaffine.so"}
