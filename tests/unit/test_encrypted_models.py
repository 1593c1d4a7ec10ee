"""Encrypted model files: encrypted, opened with their key by the compiler and by libtenon, and never left readable."""

from __future__ import annotations

import ctypes
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tenon
from command_line import run_main
from given_keys import FORMS, given_key
from onnx_models import model, node
from opened_in_c import NOT_SIGNED, OK, WRONG_KEY, WRONG_SIZE, Api, KeyFunction, Options, Transform
from real import ROOT
from tenon.cli import main
from tenon.errors import BundleError, InputError
from tenon.formats.wire.encryption import MAGIC, WrongKeyError
from tenon.runtime.bundle.encrypted_files import decrypt, decrypt_folder, encrypt, encrypt_folder
from tenon.runtime.sdk import save_sdk

KEY, OTHER = bytes(range(32)), bytes(32)
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
WEIGHTS = np.random.default_rng(3).normal(size=(64, 33)).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """net.onnx; the same with weights in a second file in split/; each encrypted as well; and keys."""
    folder = tmp_path_factory.mktemp("encrypted")
    network = model(
        [node("MatMul", ["x", "secret_weights"], ["y"])], {"x": [1, 64]}, ["y"], {"secret_weights": WEIGHTS}
    )
    (folder / "net.onnx").write_bytes(network.SerializeToString())
    (folder / "split").mkdir()
    onnx.save(network, folder / "split" / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    (folder / "sealed.onnx").write_bytes(encrypt(folder / "net.onnx", KEY))
    (folder / "sealed").mkdir()
    for name, content in encrypt_folder(folder / "split", KEY).items():
        (folder / "sealed" / name).write_bytes(content)
    (folder / "turned.bin").write_bytes(turned((folder / "net.onnx").read_bytes()))
    (folder / "key").write_text(KEY.hex())
    (folder / "other-key").write_bytes(OTHER)
    return folder


def turned(content: bytes) -> bytes:
    return (np.frombuffer(content, np.uint8) ^ 0x5A).tobytes()


def weights_of(graph: tenon.Graph) -> bytes:
    (data,) = (value.data for value in graph.constants() if value.type.dims == WEIGHTS.shape)
    assert data is not None
    return data.tobytes()


# ------------------------------------------------------------------------------------------------ in Python
@pytest.mark.parametrize("name", ["sealed.onnx", "sealed/net.onnx", "sealed"])
@pytest.mark.parametrize("form", FORMS)
def test_encrypted_models_are_read_with_their_key(
    name: str, form: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tenon.load(place / name, **given_key(form, KEY, place / "key", monkeypatch))
    assert weights_of(graph) == WEIGHTS.tobytes()


def test_models_in_memory_and_their_weights_are_decrypted(place: Path) -> None:
    sealed = (place / "sealed.onnx").read_bytes()
    assert weights_of(tenon.load(sealed, key=KEY)) == WEIGHTS.tobytes()
    assert tenon.compile(sealed, key=lambda: KEY, no_tuning=True).program.constants
    bundle = tenon.compile(place / "turned.bin", transform=turned, no_tuning=True)
    assert bundle.origin is not None
    assert bundle.origin.format == "onnx"
    assert weights_of(tenon.load(turned(sealed), transform=turned, key=KEY)) == WEIGHTS.tobytes()


def test_wrong_and_missing_keys_of_models_are_one_clear_error(place: Path) -> None:
    for name in ("sealed.onnx", "sealed/net.onnx"):
        with pytest.raises(WrongKeyError, match=r"net|sealed.*: the key is not that with which it was encrypted"):
            tenon.load(place / name, key=OTHER)
        with pytest.raises(WrongKeyError, match="is encrypted: give its key"):
            tenon.load(place / name)
    with pytest.raises(InputError, match="the key has 0 bytes: 32 are needed"):
        tenon.load(place / "sealed.onnx", key=b"")


def test_keys_are_forgotten_after_loading(place: Path) -> None:
    tenon.load(place / "sealed.onnx", key=KEY)
    with pytest.raises(WrongKeyError):
        tenon.load(place / "sealed.onnx")


def test_encrypted_files_show_nothing_and_are_reproducible(place: Path) -> None:
    content = (place / "sealed.onnx").read_bytes()
    for text in (KEY, KEY.hex().encode(), b"secret_weights", b"MatMul", WEIGHTS.tobytes()[:64]):
        assert text not in content
    assert encrypt(place / "net.onnx", KEY) == content
    assert decrypt(place / "sealed.onnx", KEY) == (place / "net.onnx").read_bytes()
    plain = {path.name: path.read_bytes() for path in (place / "split").iterdir()}
    assert decrypt_folder(place / "sealed", KEY) == plain
    with pytest.raises(BundleError, match="is encrypted already"):
        encrypt(place / "sealed.onnx", KEY)
    with pytest.raises(BundleError, match="is not encrypted"):
        decrypt(place / "net.onnx", KEY)


@pytest.mark.parametrize("at", [8, 12, 30, 45, 200, -1])
def test_changes_of_encrypted_models_are_found(at: int, place: Path, tmp_path: Path) -> None:
    content = bytearray((place / "sealed.onnx").read_bytes())
    content[at] ^= 1
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=r"net\.onnx"):
        tenon.load(tmp_path / "net.onnx", key=KEY)


@pytest.mark.parametrize("size", [8, 11, 12, 39, 40, 60])
def test_incomplete_encrypted_models_are_refused(size: int, place: Path, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes((place / "sealed.onnx").read_bytes()[:size])
    with pytest.raises(BundleError, match="is damaged"):
        tenon.load(tmp_path / "net.onnx", key=KEY)


def test_folders_with_links_are_not_encrypted(place: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.onnx").symlink_to(place / "net.onnx")
    with pytest.raises(InputError, match="is a symbolic link"):
        encrypt_folder(tmp_path / "model", KEY)


def test_importers_read_files_where_they_are_decrypted() -> None:
    """No importer opens a file itself, past ``wire.stored_files``."""
    opens = re.compile(r"\.read_bytes\(|\.read_text\(|\bopen\(|read_regular|open_regular|np\.fromfile|np\.load\(")
    calls = [
        f"{path.name}: {line.strip()}"
        for folder in ("importers", "decompositions", "graph_builder")
        for path in (ROOT / "src" / "tenon" / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if opens.search(line)
    ]
    assert calls == []


# ------------------------------------------------------------------------------------------------ commands
def test_commands_read_and_write_encrypted_files(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, sealed = ["--key-file", str(place / "key")], str(tmp_path / "sealed.onnx")
    assert run_main(main, ["encrypt", str(place / "net.onnx"), "-o", sealed, *key]) == 0
    assert Path(sealed).read_bytes() == (place / "sealed.onnx").read_bytes()
    assert run_main(main, ["encrypt", str(place / "split"), "-o", str(tmp_path / "folder"), *key]) == 0
    assert run_main(main, ["decrypt", str(tmp_path / "folder"), "-o", str(tmp_path / "plain"), *key]) == 0
    assert (tmp_path / "plain" / "net.data").read_bytes() == (place / "split" / "net.data").read_bytes()
    assert (tmp_path / "folder" / "net.data").read_bytes().startswith(MAGIC)

    out = str(tmp_path / "net.tenon")
    capsys.readouterr()
    assert run_main(main, ["compile", sealed, "-o", out, "--no-tuning"]) == 2
    assert "is encrypted: give its key" in capsys.readouterr().err
    assert run_main(main, ["compile", sealed, "-o", out, "--no-tuning", "--encrypt", *key]) == 0
    assert WEIGHTS.tobytes()[:64] not in Path(out).read_bytes()
    assert run_main(main, ["inspect", out, "--json"]) == 2
    capsys.readouterr()
    assert run_main(main, ["inspect", out, "--json", *key]) == 0
    assert json.loads(capsys.readouterr().out)["encrypted"]
    with tenon.open(out, key=KEY) as engine:
        np.testing.assert_allclose(engine.run({"x": X})["y"], X @ WEIGHTS, rtol=1e-4, atol=1e-4)
    assert run_main(main, ["inspect", sealed, "--key-file", str(place / "other-key")]) == 2
    assert "the key is not that with which it was encrypted" in capsys.readouterr().err
    assert run_main(main, ["compile", sealed, "-o", str(tmp_path / "net"), "--encrypt", *key]) == 2
    assert "only .tenon files are encrypted" in capsys.readouterr().err
    assert run_main(main, ["compile", str(place / "net.onnx"), "-o", out, "--encrypt"]) == 2
    assert "--encrypt needs a key" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["run", "benchmark", "profile", "tune", "optimize", "compare", "validate", "convert"]
)
def test_every_command_that_reads_models_takes_the_key(
    command: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sealed = str(place / "sealed.onnx")
    np.save("x.npy", X)
    np.save("samples.npy", X[None])
    Path("deploy.yml").write_text(json.dumps({"models": {"net": {"model": sealed}}}))
    short = ["--rounds", "1", "--warmup", "0"]
    words = {
        "run": [sealed, "--input", "x=x.npy"],
        "benchmark": [sealed, *short],
        "profile": [sealed, *short],
        "tune": [sealed, "--table", "table.sqlite"],
        "optimize": [sealed, "-o", "out.onnx"],
        "compare": [sealed, sealed, "--data", "samples.npy"],
        "convert": ["--config", "deploy.yml"],
        "validate": [sealed, "--data", "samples.npy", "--against", f"onnxruntime:{place / 'net.onnx'}"],
    }
    assert run_main(main, [command, *words[command]]) == 2
    assert "is encrypted: give its key" in capsys.readouterr().err
    status = run_main(main, [command, *words[command], "--key-file", str(place / "key")])
    assert status == 0, capsys.readouterr().err


def test_only_single_files_are_saved_encrypted(place: Path, tmp_path: Path) -> None:
    bundle = tenon.compile(place / "net.onnx", no_tuning=True)
    with pytest.raises(InputError, match=r"only \.tenon files are encrypted"):
        bundle.save(tmp_path / "net", key=KEY)
    bundle.save(tmp_path / "net.tenon", key=KEY)
    with pytest.raises(WrongKeyError):
        tenon.open(tmp_path / "net.tenon", key=OTHER)


# ------------------------------------------------------------------------------------------------ libtenon
@pytest.fixture
def api(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """libtenon, which starts this Tenon, with the cache in tmp_path."""
    if platform.system() != "Linux":
        pytest.skip("libtenon starts the compiler on Linux here")
    save_sdk(place / "sdk")
    objects, script = tenon.Options.from_environment().cache, tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\nTENON_CACHE="{objects}" exec "{sys.executable}" -m tenon "$@"\n')
    script.chmod(0o755)
    for name, value in {"TENON": script, "TENON_CACHE": tmp_path / "cache", "TENON_NO_TUNING": 1}.items():
        monkeypatch.setenv(name, str(value))
    return Api(place)


def test_libtenon_compiles_encrypted_models(
    api: Api, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is that of the program, a file, a function or the environment; the bundle in the cache is encrypted."""

    def gives_key(context: object, key: ctypes.Array[ctypes.c_uint8]) -> int:
        ctypes.memmove(key, KEY, 32)
        return 0

    def turn(context: int | None, data: int, size: int) -> int:
        room = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(data))
        room ^= 0x5A
        return 0

    def opened(name: str = "sealed.onnx", **fields: Any) -> tuple[int, str]:
        return api.open(name, never_compile=0, **fields)

    cached = (tmp_path / "cache").rglob
    refused: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (WRONG_KEY, "is encrypted: give its key", {}),
        (WRONG_KEY, "the key is not that with which it was encrypted", {"key": OTHER}),
        (NOT_SIGNED, "only .tenon files are signed", {"key": KEY, "public_key": KEY}),
    )
    for wanted, text, fields in refused:
        status, message = opened(**fields)
        assert (status, text in message, "sealed.onnx" in message) == (wanted, True, True), message
    assert not list(cached("*.tenon")), "nothing is compiled with a wrong key"
    assert opened(key=KEY) == (OK, "")
    assert opened(key_file=str(place / "key").encode()) == (OK, "")
    assert opened(key_function=KeyFunction(gives_key)) == (OK, "")
    monkeypatch.setenv("TENON_KEY", KEY.hex())
    assert opened() == (OK, "")
    monkeypatch.delenv("TENON_KEY")
    assert len(list(cached("*.tenon"))) == 1, "compiled once"
    assert opened("turned.bin", transform=Transform(turn), model_name=b"net.onnx", key=KEY) == (OK, "")
    for path in cached("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in (WEIGHTS.tobytes()[:64], KEY, KEY.hex().encode()):
            assert secret not in content, path


def test_libtenon_keeps_no_key_to_compile_encrypted_models_for_other_shapes(api: Api, place: Path) -> None:
    options = Options(struct_size=ctypes.sizeof(Options), key=KEY)
    bundle, engine = ctypes.c_void_p(), ctypes.c_void_p()
    library = api.library
    path = str(place / "sealed.onnx").encode()
    assert library.tenon_bundle_open(path, ctypes.byref(options), ctypes.byref(bundle)) == OK
    assert library.tenon_engine_create(bundle, None, ctypes.byref(engine)) == OK
    shapes = (ctypes.c_int64 * 8)(*[7] * 8)
    assert library.tenon_engine_select_shapes(engine, shapes, ctypes.c_size_t(8)) == WRONG_SIZE
    text = library.tenon_last_error().decode()
    assert "encrypted or transformed" in text
    assert "options.shapes" in text
    assert library.tenon_engine_run(engine) == OK, "the engine is as before"
    library.tenon_engine_destroy(engine)
    library.tenon_bundle_close(bundle)
