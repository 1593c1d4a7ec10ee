"""AES-256-GCM in C, and encrypted bundles in libtenon."""

from __future__ import annotations

import ctypes
import os
import platform
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import tenon
from libtenon import client, needed, run, succeeded
from onnx_models import model, node
from tenon.bundle.container import Container
from tenon.bundle.encrypted_files import encrypt
from tenon.sdk import save_sdk
from tenon.sdk.libtenon import RUNTIME

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")

KEY, OTHER = bytes(range(32)), bytes(32)
OK, DAMAGED, WRONG_KEY = 0, 5, 16

_LONG_KEY = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"
_LONG_TEXT = (
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
)
_LONG_SEALED = (
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"
)
VECTORS = (  # test cases 13 to 16 of "The Galois/Counter Mode of Operation", McGrew and Viega
    ("00" * 32, "00" * 12, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    ("00" * 32, "00" * 12, "", "00" * 16, "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
    (_LONG_KEY, "cafebabefacedbaddecaf888", "", _LONG_TEXT, _LONG_SEALED, "b094dac5d93471bdec1a502270e3cc6c"),
    (
        _LONG_KEY, "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2", _LONG_TEXT[:120],
        _LONG_SEALED[:120], "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
)  # fmt: skip

Decrypt = Callable[[bytes, bytes, bytes], bytes | None]


@pytest.fixture(scope="module")
def decrypted(tmp_path_factory: pytest.TempPathFactory) -> Decrypt:
    """tn_decrypt, compiled with gcc: the text of a sealed one."""
    out = tmp_path_factory.mktemp("aes") / "aes.so"
    flags = ("-O1", "-std=gnu99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fsanitize=undefined")
    includes = [f"-I{RUNTIME / folder}" for folder in ("libtenon", "include")]
    succeeded(run(needed("gcc"), *flags, *includes, RUNTIME / "libtenon" / "aes_gcm.c", "-o", out))
    function = ctypes.CDLL(str(out)).tn_decrypt

    def decrypt(key: bytes, name: bytes, sealed: bytes) -> bytes | None:
        text = ctypes.create_string_buffer(len(sealed) + 1)
        genuine = function(key, name, sealed, ctypes.c_size_t(len(sealed)), text)
        return text.raw[: len(sealed) - 28] if genuine else None

    return decrypt


@pytest.mark.parametrize("vector", VECTORS)
def test_vectors_of_nist(vector: tuple[str, ...], decrypted: Decrypt) -> None:
    key, nonce, name, text, sealed, tag = map(bytes.fromhex, vector)
    assert decrypted(key, name, nonce + sealed + tag) == text
    assert decrypted(key, name + b"x", nonce + sealed + tag) is None


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 127, 128, 129, 1000, 4100])
def test_decrypts_what_cryptography_encrypts(size: int, decrypted: Decrypt) -> None:
    rng = random.Random(size)
    key, nonce, text, name = rng.randbytes(32), rng.randbytes(12), rng.randbytes(size), b"net.weights.bin"[: size % 16]
    sealed = nonce + AESGCM(key).encrypt(nonce, text, name)
    assert decrypted(key, name, sealed) == text
    for _ in range(8):
        damaged = bytearray(sealed)
        damaged[rng.randrange(len(sealed))] ^= 1 << rng.randrange(8)
        assert decrypted(key, name, bytes(damaged)) is None
    assert decrypted(rng.randbytes(32), name, sealed) is None
    assert decrypted(key, name, sealed[:27]) is None


# ------------------------------------------------------------------------------------------------ libtenon
KeyFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8 * 32))
Transform = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Options(ctypes.Structure):
    """TenonOpenOptions."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("skip_checksums", ctypes.c_int32),
        ("never_compile", ctypes.c_int32),
        ("target", ctypes.c_char_p),
        ("model_name", ctypes.c_char_p),
        ("weights", ctypes.c_char_p),
        ("shapes", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("compile_seconds", ctypes.c_int32),
        ("key", ctypes.c_char_p),
        ("key_file", ctypes.c_char_p),
        ("key_function", KeyFunction),
        ("key_context", ctypes.c_void_p),
        ("transform", Transform),
        ("transform_context", ctypes.c_void_p),
    )


class Api:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = ctypes.CDLL(str(folder / "sdk" / "lib" / "libtenon.so"))
        self.library.tenon_last_error.restype = ctypes.c_char_p

    def open(self, name: str, **fields: object) -> tuple[int, str]:
        """The status of opening a file, and the text of the error; the bundle is closed."""
        options = Options(struct_size=ctypes.sizeof(Options), never_compile=1, **fields)
        bundle = ctypes.c_void_p()
        status = self.library.tenon_bundle_open(
            str(self.folder / name).encode(), ctypes.byref(options), ctypes.byref(bundle)
        )
        if status == OK:
            self.library.tenon_bundle_close(bundle)
            return OK, ""
        return int(status), self.library.tenon_last_error().decode()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Api:
    """libtenon, and a folder with a bundle in its forms, and keys."""
    folder = tmp_path_factory.mktemp("libtenon")
    save_sdk(folder / "sdk")
    weights = np.random.default_rng(1).normal(size=(64, 33)).astype(np.float32)
    network = model([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 64]}, ["y"], {"w": weights})
    tenon.compile(network.SerializeToString(), name="net", no_tuning=True).save(folder / "net.tenon")
    (folder / "sealed.tenon").write_bytes(encrypt(folder / "net.tenon", KEY))
    (folder / "turned.bin").write_bytes(bytes(byte ^ 0x5A for byte in (folder / "net.tenon").read_bytes()))
    (folder / "key").write_bytes(KEY)
    (folder / "digits").write_text(KEY.hex() + "\n")
    (folder / "other-key").write_text(OTHER.hex())
    return Api(folder)


def test_libtenon_decrypts(api: Api) -> None:
    """The answer is that of Python; the key comes from a file that the environment names."""
    program = client("run_bundle", api.folder / "sdk", api.folder)
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    with tenon.open(api.folder / "net.tenon") as engine:
        expected = engine.run({"x": x[None]})["y"].tobytes()
    for variables in ({"TENON_KEY_FILE": str(api.folder / "digits")}, {"TENON_KEY": KEY.hex()}):
        found = run(program, api.folder / "sealed.tenon", stdin=x.tobytes(), env={**os.environ, **variables})
        assert succeeded(found) == expected
    failed = run(program, api.folder / "sealed.tenon", stdin=x.tobytes(), env={**os.environ, "TENON_KEY": OTHER.hex()})
    assert b"TENON_WRONG_KEY" in failed.stderr
    assert b"the key is not that with which it was encrypted" in failed.stderr


def test_libtenon_takes_keys_from_program_and_files(api: Api) -> None:
    def gives_key(context: object, key: ctypes.Array[ctypes.c_uint8]) -> int:
        ctypes.memmove(key, KEY, 32)
        return 0

    give, refuse = KeyFunction(gives_key), KeyFunction(lambda context, key: 3)
    given: list[dict[str, object]] = [{"key": KEY}, {"key_function": give}]
    given += [{"key_file": str(api.folder / name).encode()} for name in ("key", "digits")]
    for fields in given:
        assert api.open("sealed.tenon", **fields) == (OK, ""), fields
    assert api.open("net.tenon", key=OTHER) == (OK, ""), "a key that is not needed"
    refused: dict[str, dict[str, object]] = {
        "is encrypted: give its key": {},
        "the key is not that": {"key": OTHER},
        "the function for its key returned 3": {"key_function": refuse},
        "there is no key file": {"key_file": b"/absent"},
        "does not have 32 bytes or 64 hexadecimal digits": {"key_file": str(api.folder / "net.tenon").encode()},
    }
    for text, fields in refused.items():
        status, message = api.open("sealed.tenon", **fields)
        assert status == WRONG_KEY, (text, status, message)
        assert text in message
        assert "sealed.tenon" in message


@pytest.mark.parametrize("part", ["manifest.json", ".so", ".bin"])
def test_libtenon_finds_changes_after_encryption(part: str, api: Api) -> None:
    file = Container(str(api.folder / "sealed.tenon"))
    content = bytearray((api.folder / "sealed.tenon").read_bytes())
    content[file.places[next(name for name in file.parts if name.endswith(part))][0] + 15] ^= 4
    (api.folder / "changed.tenon").write_bytes(content)
    status, message = api.open("changed.tenon", key=KEY, skip_checksums=1)
    assert status == DAMAGED
    assert "was changed after it was encrypted" in message


def test_libtenon_transforms_what_programs_stored(api: Api) -> None:
    def turn(context: int | None, data: int, size: int) -> int:
        room = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(data))
        room ^= 0x5A
        return 0

    assert api.open("turned.bin", transform=Transform(turn)) == (OK, "")
    status, message = api.open("turned.bin", transform=Transform(lambda context, data, size: 7))
    assert (status, "the program's transform returned the error 7" in message) == (DAMAGED, True)
    assert api.open("turned.bin")[0] != OK
    assert (api.folder / "turned.bin").read_bytes()[0] == ord("T") ^ 0x5A, "the file itself stays as it is"
