"""AES-256-GCM in C, and encrypted bundles in libtenon."""

from __future__ import annotations

import ctypes
import lzma
import os
import platform
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import tenon
from exchanged_parts import exchanged, sealed_pair
from libtenon import CLIENTS, client, needed, run, succeeded
from onnx_models import model, node
from opened_in_c import (
    ARGUMENT,
    DAMAGED,
    NOT_FOUND,
    NOT_SIGNED,
    OK,
    SYSTEM,
    WRONG_KEY,
    Api,
    KeyFunction,
    Options,
    Transform,
)
from tenon.runtime.bundle.container import Container, container, container_of
from tenon.runtime.bundle.delta import apply, delta
from tenon.runtime.bundle.encrypted_files import encrypt
from tenon.runtime.bundle.signature import SignatureError, sign
from tenon.runtime.sdk import save_sdk
from tenon.runtime.sdk.libtenon import RUNTIME

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")

KEY, OTHER = bytes(range(32)), bytes(32)

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
        _LONG_KEY,
        "cafebabefacedbaddecaf888",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        _LONG_TEXT[:120],
        _LONG_SEALED[:120],
        "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
)

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


def secret_lines(source: str, out: Path, stdin: bytes) -> tuple[int, bytes, list[str]]:
    """Decrypt under valgrind: status, output, and the lines of the source whose branches or addresses depend on the key
    or the text."""
    out.mkdir()
    (out / "aes_gcm.c").write_text(source)
    includes = [f"-I{path}" for path in (out, RUNTIME / "libtenon", RUNTIME / "include")]
    succeeded(run(needed("gcc"), "-O2", "-g", "-std=gnu99", *includes, CLIENTS / "secret_key.c", "-o", out / "client"))
    done = run(needed("valgrind"), "-q", out / "client", stdin=stdin)
    lines = source.splitlines()
    numbers = re.findall(r"at 0x\w+: [\w.]+ \(aes_gcm\.c:(\d+)\)", done.stderr.decode())
    assert len(numbers) == done.stderr.count(b"uninitialised"), done.stderr.decode()
    return done.returncode, done.stdout, [lines[int(number) - 1] for number in numbers]


def test_decryption_takes_the_same_time_for_all_keys_and_texts(tmp_path: Path) -> None:
    """Only whether the text is genuine decides anything; a comparison of the tag that ends early would be noticed."""
    if not Path("/usr/include/valgrind/memcheck.h").exists():
        pytest.skip("the headers of valgrind are not installed")
    source = (RUNTIME / "libtenon" / "aes_gcm.c").read_text()
    text = random.Random(1).randbytes(300)
    stdin = KEY + b"n" * 12 + AESGCM(KEY).encrypt(b"n" * 12, text, b"name")
    status, plain, lines = secret_lines(source, tmp_path / "own", stdin)
    assert (status, plain) == (0, text)
    assert lines
    assert all("genuine" in line for line in lines), lines
    early = source.replace(
        "  const uint64_t wrong =",
        "  if (sum.high != (big(mask) ^ big(text + bytes))) return 0;\n  const uint64_t wrong =",
    )
    assert early != source
    _, _, lines = secret_lines(early, tmp_path / "early", stdin)
    assert any("if (sum.high" in line for line in lines)


RFC_8032 = (  # section 7.1, tests 1 to 3: public key, message, signature
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
)


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
        done = run(program, api.folder / "sealed.tenon", stdin=x.tobytes(), env={**os.environ, **variables})
        assert succeeded(done) == expected
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
    for fields in given:
        status, message = api.open("net.tenon", **fields)
        assert (status, "is not encrypted, which a key demands" in message) == (WRONG_KEY, True)
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


def test_parts_of_files_with_the_same_key_cannot_be_exchanged_in_c(api: Api) -> None:
    first, second, plain = sealed_pair(api.folder, KEY)
    for path in (first, second):
        assert api.open(path.name, key=KEY) == (OK, "")
    for name, content in exchanged(first, second, plain).items():
        (api.folder / "exchanged.tenon").write_bytes(content)
        assert api.open("exchanged.tenon", key=KEY)[0] in (DAMAGED, WRONG_KEY), name


@pytest.mark.parametrize("variable", ["TENON_KEY", "TENON_KEY_FILE"])
def test_a_key_demands_encryption_in_c(variable: str, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    (api.folder / "plain").mkdir(exist_ok=True)
    (api.folder / "plain" / "manifest.json").write_text("{}")
    monkeypatch.setenv(variable, KEY.hex() if variable == "TENON_KEY" else str(api.folder / "key"))
    for name in ("net.tenon", "plain"):
        status, message = api.open(name)
        assert (status, "is not encrypted, which a key demands" in message) == (WRONG_KEY, True)


def test_libtenon_demands_a_version(api: Api) -> None:
    private = Ed25519PrivateKey.from_private_bytes(KEY)
    public, pem = private.public_key().public_bytes_raw(), api.folder / "versions.pem"
    pem.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (api.folder / "seven.tenon").write_bytes(sign(Container(str(api.folder / "net.tenon")), pem, 7))
    for version in (0, 7):
        assert api.open("seven.tenon", public_key=public, minimum_version=version) == (OK, "")
    status, message = api.open("seven.tenon", public_key=public, minimum_version=8)
    assert (status, "was signed as version 7, and 8 is the oldest" in message) == (NOT_SIGNED, True)
    assert api.open("seven.tenon", minimum_version=8)[0] == ARGUMENT
    assert api.open("seven.tenon", public_key=public, minimum_version=-1)[0] == ARGUMENT
    assert api.open("seven.tenon", public_key=public, struct_size=Options.minimum_version.offset) == (OK, "")


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
        sealed: dict[str, object] = {"key": KEY} if name == "sealed" else {}
        assert api.open(f"signed-{name}.tenon", public_key=public, **sealed) == (OK, "")
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


def test_signed_files_of_several_targets(api: Api) -> None:
    """They open in C and in Python; a change of any target's files is found by both."""
    private = Ed25519PrivateKey.from_private_bytes(KEY)
    public, pem = private.public_key().public_bytes_raw(), api.folder / "several.pem"
    pem.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    plain = Container(str(api.folder / "net.tenon"))
    (own,) = plain.targets
    files = {name: plain.part(own, name).tobytes() for name in plain.files(own)}
    several = api.folder / "several.tenon"
    several.write_bytes(container({"riscv64-v": files, own: files, "armv7-neon": files}))
    several.write_bytes(sign(Container(str(several)), pem))
    assert api.open("several.tenon", public_key=public) == (OK, "")
    with tenon.open(several, public_key=public) as engine, tenon.open(api.folder / "net.tenon") as single:
        given = {name: np.ones(port.shape, np.float32) for name, port in engine.inputs.items()}
        for name, value in single.run(given).items():
            np.testing.assert_array_equal(engine.run(given)[name], value)
    file, content = Container(str(several)), several.read_bytes()
    assert file.targets == ("riscv64-v", own, "armv7-neon")
    for part in file.parts:
        changed = bytearray(content)
        changed[file.places[part][0] + 40] ^= 1
        (api.folder / "changed.tenon").write_bytes(changed)
        assert api.open("changed.tenon", public_key=public)[0] == NOT_SIGNED, part
        with pytest.raises(SignatureError):
            tenon.open(api.folder / "changed.tenon", public_key=public)


# ------------------------------------------------------------------------------------------------ updates
Decompress = Callable[[bytes, int], bytes | None]


@pytest.fixture(scope="module")
def decompressed(tmp_path_factory: pytest.TempPathFactory) -> Decompress:
    """tn_lzma_decompress: the result of so many bytes; it must leave the bytes behind it alone."""
    function = compiled("lzma", tmp_path_factory.mktemp("lzma")).tn_lzma_decompress

    def decompress(data: bytes, size: int) -> bytes | None:
        result = ctypes.create_string_buffer(b"\xa5" * (size + 64), size + 64)
        whole = function(data, ctypes.c_size_t(len(data)), result, ctypes.c_size_t(size))
        assert result.raw[size:] == b"\xa5" * 64
        return result.raw[:size] if whole == 1 else None

    return decompress


def texts() -> list[bytes]:
    """Data that needs literals, matches, repeated matches of all four distances, short ones, long ones and far ones."""
    rng = random.Random(4)
    words = [rng.randbytes(n) for n in (3, 5, 8, 13, 21, 300)]
    mixed = b"".join(rng.choice(words) for _ in range(3000))
    floats = np.random.default_rng(2).normal(size=4000).astype(np.float32).tobytes()
    changed = bytearray(mixed)
    for _ in range(500):
        changed[rng.randrange(len(changed))] ^= rng.randrange(256)
    return [b"", b"a", b"a" * 5000, mixed, floats, bytes(changed), mixed + rng.randbytes(150_000) + mixed]


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 2, 0), (4, 0, 4), (1, 3, 1)], ids=str)
def test_lzma_in_c(shape: tuple[int, int, int], decompressed: Decompress) -> None:
    lc, lp, pb = shape
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 6, "lc": lc, "lp": lp, "pb": pb}]
    for text in texts() if shape == (3, 0, 2) else texts()[1:6]:
        data = lzma.compress(text, format=lzma.FORMAT_ALONE, filters=filters)
        assert decompressed(data, len(text)) == text
        assert decompressed(data, len(text) + 1) is None, "the end mark comes before"
        assert not text or decompressed(data[: len(data) // 2], len(text)) is None


def test_damaged_lzma_stays_in_its_buffers(decompressed: Decompress) -> None:
    rng = random.Random(11)
    text = texts()[5][:3000]
    data = lzma.compress(text, format=lzma.FORMAT_ALONE)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 8))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        decompressed(bytes(damaged[: rng.choice((len(data), rng.randrange(len(data))))]), len(text))


@pytest.fixture(scope="module")
def updates(api: Api) -> Path:
    """A folder with old.tenon, new.tenon, whose weights differ slightly, and update."""
    folder = api.folder / "updates"
    folder.mkdir()
    file = Container(str(api.folder / "net.tenon"))
    parts = {name: file.stored(name).tobytes() for name in file.parts}
    name = next(each for each in parts if each.endswith(".bin"))
    changed = np.frombuffer(parts[name], np.float32) * np.float32(1.0001)
    (folder / "old.tenon").write_bytes((api.folder / "net.tenon").read_bytes())
    (folder / "new.tenon").write_bytes(container_of({**parts, name: changed.tobytes(), "more": b"more"}))
    (folder / "update").write_bytes(delta(folder / "old.tenon", folder / "new.tenon"))
    return folder


def test_libtenon_applies_updates(api: Api, updates: Path) -> None:
    old, new = (updates / f"{name}.tenon" for name in ("old", "new"))
    assert api.patch(old, updates / "update", updates / "made.tenon") == (OK, "")
    assert (updates / "made.tenon").read_bytes() == new.read_bytes() == apply(old, updates / "update")
    (updates / "own.tenon").write_bytes(old.read_bytes())
    assert api.patch(updates / "own.tenon", updates / "update", updates / "own.tenon") == (OK, "")
    assert (updates / "own.tenon").read_bytes() == new.read_bytes()
    refused = {
        (new, updates / "update", updates / "x"): (ARGUMENT, "is for another file than"),
        (old, old, updates / "x"): (DAMAGED, "is no delta of Tenon"),
        (old, updates / "absent", updates / "x"): (NOT_FOUND, "absent"),
        (old, updates / "update", updates / "absent" / "x"): (SYSTEM, "cannot be written"),
    }
    for paths, (wanted, text) in refused.items():
        status, message = api.patch(*paths)
        assert (status, text in message) == (wanted, True), message
    assert not list(updates.glob("*.part"))
    assert not (updates / "x").exists()


def test_libtenon_applies_updates_of_whom_it_trusts_only(api: Api, updates: Path) -> None:
    private = Ed25519PrivateKey.from_private_bytes(KEY)
    public = private.public_key().public_bytes_raw()
    pem = updates / "private.pem"
    pem.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    out, signed = updates / "trusted.tenon", updates / "signed.tenon"
    status, message = api.patch(updates / "old.tenon", updates / "update", out, public)
    assert (status, "is not signed" in message, out.exists()) == (NOT_SIGNED, True, False)
    with pytest.raises(SignatureError, match="is not signed"):
        apply(updates / "old.tenon", updates / "update", public)
    signed.write_bytes(sign(Container(str(updates / "new.tenon")), pem))
    (updates / "signed-update").write_bytes(delta(updates / "old.tenon", signed))
    assert api.patch(updates / "old.tenon", updates / "signed-update", out, public) == (OK, "")
    assert out.read_bytes() == signed.read_bytes()
    assert api.patch(updates / "old.tenon", updates / "signed-update", out, OTHER)[0] == NOT_SIGNED
    assert apply(updates / "old.tenon", updates / "signed-update", public) == signed.read_bytes()


def test_libtenon_refuses_damaged_updates(api: Api, updates: Path) -> None:
    content, out = (updates / "update").read_bytes(), updates / "damaged.tenon"
    rng, path = random.Random(5), updates / "damaged"
    for _ in range(150):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged[: rng.choice((len(content), len(content), rng.randrange(len(content))))])
        if path.read_bytes() == content:
            continue
        status, message = api.patch(updates / "old.tenon", path, out)
        whole = status == OK and out.read_bytes() == (updates / "new.tenon").read_bytes()
        assert status in (DAMAGED, ARGUMENT) or whole, (status, message)  # .lzma files have bytes that do not matter
        out.unlink(missing_ok=True)
