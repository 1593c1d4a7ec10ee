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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import tenon
from libtenon import client, needed, run, succeeded
from onnx_models import model, node
from tenon.bundle.container import Container
from tenon.bundle.encrypted_files import encrypt
from tenon.bundle.signature import sign
from tenon.sdk import save_sdk
from tenon.sdk.libtenon import RUNTIME

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")

KEY, OTHER = bytes(range(32)), bytes(32)
OK, ARGUMENT, DAMAGED, WRONG_KEY, NOT_SIGNED = 0, 2, 5, 16, 17

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


def compiled(name: str, out: Path) -> ctypes.CDLL:
    """A C file of libtenon alone, under a sanitizer."""
    flags = ("-O1", "-std=gnu99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fsanitize=undefined")
    includes = [f"-I{RUNTIME / folder}" for folder in ("libtenon", "include")]
    succeeded(run(needed("gcc"), *flags, *includes, RUNTIME / "libtenon" / f"{name}.c", "-o", out / f"{name}.so"))
    return ctypes.CDLL(str(out / f"{name}.so"))


@pytest.fixture(scope="module")
def decrypted(tmp_path_factory: pytest.TempPathFactory) -> Decrypt:
    """tn_decrypt: the text of a sealed one."""
    function = compiled("aes_gcm", tmp_path_factory.mktemp("aes")).tn_decrypt

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


RFC_8032 = (  # section 7.1, tests 1 to 3: public key, message, signature
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
)  # fmt: skip


def test_signatures_in_c(tmp_path: Path) -> None:
    """The vectors of RFC 8032, and what cryptography signs; nothing else is genuine."""
    function = compiled("ed25519", tmp_path).tn_is_signed

    def genuine(public: bytes, signature: bytes, message: bytes) -> bool:
        return bool(function(public, signature, message, ctypes.c_size_t(len(message))))

    cases: list[tuple[bytes, bytes, bytes]] = []
    for vector in RFC_8032:
        public, message, signature = map(bytes.fromhex, vector)
        cases.append((public, message, signature))
    rng = random.Random(8)
    for size in (1, 63, 111, 112, 127, 128, 240, 1000):
        private, message = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)), rng.randbytes(size)
        cases.append((private.public_key().public_bytes_raw(), message, private.sign(message)))
    for public, message, signature in cases:
        assert genuine(public, signature, message)
        assert not genuine(public, signature, message + b"x")
        for _ in range(4):
            other = bytearray(signature)
            other[rng.randrange(64)] ^= 1 << rng.randrange(8)
            assert not genuine(public, bytes(other), message)
        assert not genuine(rng.randbytes(32), signature, message)
    order = 2**252 + 27742317777372353535851937790883648493
    more = (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")
    assert not genuine(public, signature[:32] + more, message), "the scalar has to be below the order"
    assert not genuine(b"\xff" * 32, signature, message), "no point of the curve"


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
        ("weights_data", ctypes.c_void_p),
        ("weights_bytes", ctypes.c_size_t),
        ("public_key", ctypes.c_char_p),
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


def test_libtenon_verifies_signatures(api: Api) -> None:
    private = Ed25519PrivateKey.from_private_bytes(KEY)
    public = private.public_key().public_bytes_raw()
    pem = api.folder / "private.pem"
    pem.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for name in ("net", "sealed"):
        signed = sign(Container(str(api.folder / f"{name}.tenon")), pem)
        (api.folder / f"signed-{name}.tenon").write_bytes(signed)
        assert api.open(f"signed-{name}.tenon", public_key=public, key=KEY) == (OK, "")
    status, message = api.open("net.tenon", public_key=public)
    assert (status, "is not signed" in message) == (NOT_SIGNED, True)
    other = Ed25519PrivateKey.from_private_bytes(OTHER).public_key().public_bytes_raw()
    status, message = api.open("signed-net.tenon", public_key=other)
    assert (status, "was signed with another key" in message) == (NOT_SIGNED, True)
    file, content = Container(str(api.folder / "signed-net.tenon")), (api.folder / "signed-net.tenon").read_bytes()
    for part in file.parts:
        changed = bytearray(content)
        changed[file.places[part][0] + 40] ^= 1
        (api.folder / "changed.tenon").write_bytes(changed)
        assert api.open("changed.tenon", public_key=public)[0] == NOT_SIGNED, part
    (api.folder / "folder").mkdir()
    (api.folder / "folder" / "manifest.json").write_text("{}")
    assert api.open("folder", public_key=public)[0] == ARGUMENT
