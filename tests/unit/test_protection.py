"""Encrypted, signed and updated ``.tenon`` files, and their bills of materials, in Python and in libtenon."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
import re
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import tenon
from command_line import run_main
from exchanged_parts import exchanged, sealed_pair
from given_keys import FORMS, given_key
from onnx_models import model, node
from tenon.cli import main
from tenon.errors import BundleError, InputError
from tenon.formats.wire.encryption import WrongKeyError, seal, unseal
from tenon.machine.targets import find, host_cpu
from tenon.runtime.bundle.container import Container, container, container_of
from tenon.runtime.bundle.delta import MAGIC, apply, delta
from tenon.runtime.bundle.encrypted_files import decrypt, encrypt
from tenon.runtime.bundle.sbom import sbom
from tenon.runtime.bundle.signature import SignatureError, sign
from tenon.runtime.engine.files import choose_target
from tenon.runtime.sdk.libtenon import target_rows

KEY, OTHER = bytes(range(32)), bytes(32)
DAMAGED, WRONG_KEY = 5, 16
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)


def network(seed: int = 0, spread: float = 1.0) -> bytes:
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(64, 96)).astype(np.float32)
    weights += np.float32(1e-4) * np.random.default_rng(seed).normal(size=(64, 96)).astype(np.float32) * (seed > 0)
    nodes = [node("MatMul", ["x", "w"], ["secret_layer"]), node("Relu", ["secret_layer"], ["y"])]
    return bytes(model(nodes, {"x": [1, 64]}, ["y"], {"w": weights}).SerializeToString())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle in its forms, and keys."""
    folder = tmp_path_factory.mktemp("protection")
    bundle = tenon.compile(network(), name="net", no_tuning=True)
    bundle.save(folder / "net.tenon")
    bundle.save(folder / "net", ("library", "weights"))
    tenon.compile(network(1), name="net", no_tuning=True).save(folder / "newer.tenon")
    (folder / "key").write_text(KEY.hex() + "\n")
    (folder / "other-key").write_bytes(OTHER)
    (folder / "sealed.tenon").write_bytes(encrypt(folder / "net.tenon", KEY))
    private = Ed25519PrivateKey.from_private_bytes(KEY)
    (folder / "private.pem").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "public.pem").write_bytes(
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (folder / "signed.tenon").write_bytes(sign(Container(str(folder / "net.tenon")), folder / "private.pem"))
    return folder


@pytest.fixture(scope="module")
def expected(place: Path) -> bytes:
    return answer(place / "net")


def answer(path: Path, **how: object) -> bytes:
    with tenon.open(path, **how) as engine:  # type: ignore[arg-type]
        return bytes(engine.run({"x": X})["y"].tobytes())


# ------------------------------------------------------------------------------------------------ encryption
@pytest.mark.parametrize("form", FORMS)
def test_encrypted_bundles_run_with_their_key(
    form: str, place: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(place / "sealed.tenon", **given_key(form, KEY, place / "key", monkeypatch)) == expected


def test_wrong_and_missing_keys_are_one_clear_error(place: Path) -> None:
    with pytest.raises(WrongKeyError, match=r"sealed\.tenon: the key is not that with which it was encrypted"):
        answer(place / "sealed.tenon", key=place / "other-key")
    with pytest.raises(WrongKeyError, match="is encrypted: give its key"):
        answer(place / "sealed.tenon")
    with pytest.raises(InputError, match="the key has 5 bytes: 32 are needed"):
        answer(place / "sealed.tenon", key=b"short")
    with pytest.raises(InputError, match="cannot read the key"):
        answer(place / "sealed.tenon", key=place / "absent")
    with pytest.raises(InputError, match="does not hold a key"):
        answer(place / "sealed.tenon", key=place / "net.tenon")


def test_encrypted_bundles_show_nothing(place: Path) -> None:
    """Neither the key nor names, weights or code; and the same input gives the same bytes."""
    content = (place / "sealed.tenon").read_bytes()
    plain = Container(str(place / "net.tenon"))
    weights = plain.stored(next(name for name in plain.parts if name.endswith(".bin"))).tobytes()
    for text in (KEY, KEY.hex().encode(), b"secret_layer", b"\x7fELF", weights[:64], weights[-64:]):
        assert text not in content
    assert encrypt(place / "net.tenon", KEY) == content
    assert decrypt(place / "sealed.tenon", KEY) == (place / "net.tenon").read_bytes()


def test_folders_are_encrypted_to_files(place: Path, tmp_path: Path, expected: bytes) -> None:
    (tmp_path / "a.tenon").write_bytes(encrypt(place / "net", KEY))
    assert answer(tmp_path / "a.tenon", key=KEY) == expected


def test_nonces_differ_between_files_and_contents() -> None:
    sealed = [seal(KEY, name, text)[:12] for name in "ab" for text in (b"", b"1", b"2")]
    assert len(set(sealed)) == len(sealed)
    assert unseal(KEY, "a", seal(KEY, "a", b"text")) == b"text"
    assert unseal(KEY, "b", seal(KEY, "a", b"text")) is None


def changed(place: Path, name: str, part: str) -> bytes:
    """A file of which a byte of a part differs."""
    file = Container(str(place / name))
    full = next(each for each in file.parts if each.endswith(part))
    content = bytearray((place / name).read_bytes())
    content[file.places[full][0] + 20] ^= 1
    return bytes(content)


@pytest.mark.parametrize("part", ["manifest.json", ".so", ".bin"])
def test_changes_after_encryption_are_found(part: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tenon").write_bytes(changed(place, "sealed.tenon", part))
    with pytest.raises(BundleError, match=f"{part} was changed after it was encrypted"):
        answer(tmp_path / "a.tenon", key=KEY)


def test_parts_cannot_change_places(place: Path, tmp_path: Path) -> None:
    file = Container(str(place / "sealed.tenon"))
    parts = {name: file.stored(name).tobytes() for name in file.parts}
    names = [name for name in parts if "/" in name]
    turned = dict(zip(names, [parts[name] for name in (*names[1:], names[0])], strict=True))
    (tmp_path / "a.tenon").write_bytes(container_of({**parts, **turned}, 2))
    with pytest.raises(BundleError, match="are not those that were encrypted together"):
        answer(tmp_path / "a.tenon", key=KEY)


def refuse(path: Path, what: str) -> None:
    tenon.open(path, key=KEY)
    pytest.fail(f"{what} was opened")


def test_parts_of_files_with_the_same_key_cannot_be_exchanged(tmp_path: Path) -> None:
    first, second, plain = sealed_pair(tmp_path, KEY)
    for path in (first, second):
        tenon.open(path, key=KEY).close()
    for name, content in exchanged(first, second, plain).items():
        (tmp_path / "a.tenon").write_bytes(content)
        with pytest.raises(BundleError, match=r"is damaged|is not encrypted"):
            refuse(tmp_path / "a.tenon", name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["net.tenon", "net"])
def test_a_key_demands_encryption(form: str, name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = given_key(form, KEY, place / "key", monkeypatch)
    with pytest.raises(WrongKeyError, match="is not encrypted, which a key demands"):
        answer(place / name, **how)
    assert run_main(main, ["inspect", str(place / name), *(["--key-file", str(place / "key")] if how else [])]) == 2


def test_what_this_process_compiled_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENON_KEY", KEY.hex())
    network = model([node("Relu", ["x"], ["y"])], {"x": [1, 4]}, ["y"])
    with tenon.open(tenon.compile(network.SerializeToString(), no_tuning=True)) as engine:
        engine.run({"x": np.ones((1, 4), np.float32)})


HOSTILE = ("../../escaped", "/tmp/escaped", "a/../../b", "..\\c", "x\0y")


def container_with(rows: list[tuple[bytes, bytes]]) -> bytes:
    """A file with these parts, whose names need not be distinct or harmless."""
    parts = {f"{number:03}".encode().decode(): content for number, (_, content) in enumerate(rows)}
    whole = bytearray(container_of(parts))
    for number, (name, _) in enumerate(rows):
        at = 56 + 120 * number
        whole[at : at + 104] = name.ljust(104, b"\0")
    head, directory = bytes(whole[:24]), bytes(whole[56 : 56 + 120 * len(rows)])
    whole[24:56] = hashlib.blake2b(head + directory, digest_size=32).digest()
    return bytes(whole)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_parts_are_no_paths(name: str, place: Path, tmp_path: Path) -> None:
    """Nothing is written or read outside of the file, whatever its parts are called."""
    file, folder = Container(str(place / "net.tenon")), tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    parts = [(full.encode(), file.stored(full).tobytes()) for full in file.parts]
    rows = [*parts, (f"{name}/manifest.json".encode(), parts[0][1]), (name.encode(), b"hostile")]
    (folder / "a.tenon").write_bytes(container_with(rows))
    commands = (
        ["inspect"],
        ["encrypt", "--key-file", place / "key", "-o", folder / "b.tenon"],
        ["sign", "--key-file", place / "private.pem", "-o", folder / "b.tenon"],
        ["sbom", "-o", folder / "b.tenon"],
    )
    for command, *words in commands:
        assert run_main(main, list(map(str, [command, folder / "a.tenon", *words]))) in (0, 2)
    assert {path.name for path in tmp_path.rglob("*")} <= {"deep", "folder", "a.tenon", "b.tenon"}
    assert not Path("/tmp/escaped").exists()


@pytest.mark.parametrize("first", [True, False])
def test_names_that_are_listed_twice_are_refused(first: bool, place: Path, tmp_path: Path) -> None:
    """Otherwise readers might disagree on which of the parts is verified and which is used."""
    file = Container(str(place / "signed.tenon"))
    rows = [(name.encode(), file.stored(name).tobytes()) for name in file.parts]
    again = (next(name for name, _ in rows if name.endswith(b".so")), b"other code")
    (tmp_path / "a.tenon").write_bytes(container_with([again, *rows] if first else [*rows, again]))
    for how in ({}, {"public_key": place / "public.pem"}):
        with pytest.raises(BundleError, match="its directory lists a name twice"):
            answer(tmp_path / "a.tenon", **how)


def test_programs_transform_what_they_stored(place: Path, tmp_path: Path, expected: bytes) -> None:
    """Seed M's example: exclusive-or with a byte."""

    def turned(content: bytes) -> bytes:
        return (np.frombuffer(content, np.uint8) ^ 0x5A).tobytes()

    (tmp_path / "a.bin").write_bytes(turned((place / "net.tenon").read_bytes()))
    assert answer(tmp_path / "a.bin", transform=turned) == expected
    with pytest.raises(BundleError):
        answer(tmp_path / "a.bin")
    with pytest.raises(InputError, match=r"is no \.tenon file"):
        answer(place / "net", transform=turned)


# ------------------------------------------------------------------------------------------------ signatures
def test_signed_bundles_are_verified_when_opened(place: Path, tmp_path: Path, expected: bytes) -> None:
    assert answer(place / "signed.tenon", public_key=place / "public.pem") == expected
    assert answer(place / "signed.tenon") == expected
    other = Ed25519PrivateKey.from_private_bytes(OTHER).public_key().public_bytes_raw()
    with pytest.raises(SignatureError, match="was signed with another key"):
        answer(place / "signed.tenon", public_key=other)
    with pytest.raises(SignatureError, match="is not signed"):
        answer(place / "net.tenon", public_key=place / "public.pem")
    with pytest.raises(InputError, match="cannot read the public key"):
        answer(place / "signed.tenon", public_key=place / "absent")
    with pytest.raises(InputError, match="the public key"):
        answer(place / "signed.tenon", public_key=place / "private.pem")
    with pytest.raises(InputError, match="is no private key"):
        sign(Container(str(place / "net.tenon")), place / "public.pem")


def test_versions_are_signed(place: Path, tmp_path: Path, expected: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path, public = tmp_path / "a.tenon", place / "public.pem"
    commanded("sign", place / "net.tenon", "--key-file", place / "private.pem", "--version", "7", "-o", path)
    for version in (0, 6, 7):
        assert answer(path, public_key=public, minimum_version=version) == expected
    with pytest.raises(SignatureError, match="was signed as version 7, and 8 is the oldest that is accepted"):
        answer(path, public_key=public, minimum_version=8)
    with pytest.raises(InputError, match="needs a public key"):
        answer(path, minimum_version=8)
    file = Container(str(path))
    parts = {name: file.stored(name).tobytes() for name in file.parts}
    raised = parts["signature"][:32] + (9).to_bytes(8, "little") + parts["signature"][40:]
    path.write_bytes(container_of({**parts, "signature": raised}))
    with pytest.raises(SignatureError, match="was changed after it was signed"):
        answer(path, public_key=public, minimum_version=8)
    words = ["sign", str(place / "net.tenon"), "--key-file", str(place / "private.pem"), "-o", str(path), "--version"]
    assert run_main(main, [*words, str(2**63)]) == 2


def test_every_command_that_opens_bundles_verifies_signatures(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", X)
    data = ("--data", tmp_path)
    sealed, out = ("--key-file", place / "key"), ("-o", tmp_path / "out")
    commands: dict[str, tuple[str | Path, ...]] = {
        "run": ("--input", f"x={tmp_path / 'x.npy'}"),
        "inspect": (),
        "benchmark": ("--rounds", "1", "--warmup", "0"),
        "sbom": (),
        "encrypt": (*sealed, *out),
        "delta": (place / "signed.tenon", *out),
    }
    for name, words in commands.items():
        good = (name, place / "signed.tenon", *words, "--public-key", place / "public.pem")
        assert run_main(main, [*map(str, good)]) == 0, (name, capsys.readouterr().err)
        assert run_main(main, [*map(str, good), "--minimum-version", "1"]) == 2, name
        assert "the oldest that is accepted" in capsys.readouterr().err, name
    others: dict[str, tuple[str | Path, ...]] = {
        "profile": (),
        "verify": (),
        "validate": data,
        "evaluate": data,
        "deploy": (),
        "decrypt": (*sealed, *out),
        "compare": (place / "net.tenon", *data),
    }
    for name, words in {**commands, **others}.items():
        for bundle in ("net.tenon", "net"):
            bad = (name, *((place / "net.tenon", place / bundle) if name == "delta" else (place / bundle,)))
            rest = words[1:] if name == "delta" else words
            assert run_main(main, [*map(str, (*bad, *rest)), "--public-key", str(place / "public.pem")]) == 2, name
            assert re.search(r"is not signed|no \.tenon file", capsys.readouterr().err), (name, bundle)


def test_a_signature_is_not_ignored_for_models(tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(model([node("Relu", ["x"], ["y"])], {"x": [1, 4]}, ["y"]).SerializeToString())
    for name in ("run", "inspect", "benchmark", "verify", "profile", "validate", "evaluate"):
        assert run_main(main, [name, str(path), "--public-key", str(place / "public.pem")]) == 2
        assert "no .tenon file, and only those are signed" in capsys.readouterr().err, name
    assert run_main(main, ["run", str(place / "signed.tenon"), "--minimum-version", "1"]) == 2
    assert "needs a public key" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["manifest.json", ".so", ".bin", "signature"])
def test_changes_after_signing_are_found(part: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tenon").write_bytes(changed(place, "signed.tenon", part))
    with pytest.raises(SignatureError):
        answer(tmp_path / "a.tenon", public_key=place / "public.pem")


def test_encrypted_files_can_be_signed(place: Path, tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "a.tenon"
    path.write_bytes(sign(Container(str(place / "sealed.tenon")), place / "private.pem"))
    assert answer(path, public_key=place / "public.pem", key=KEY) == expected


# ------------------------------------------------------------------------------------------------ updates
def test_delta_gives_the_new_file(place: Path, tmp_path: Path) -> None:
    patch, new = tmp_path / "patch", (place / "newer.tenon").read_bytes()
    patch.write_bytes(delta(place / "net.tenon", place / "newer.tenon"))
    assert apply(place / "net.tenon", patch) == new
    assert patch.stat().st_size < 0.8 * len(lzma.compress(new))
    patch.write_bytes(delta(place / "net.tenon", place / "net.tenon"))
    assert apply(place / "net.tenon", patch) == (place / "net.tenon").read_bytes()
    assert patch.stat().st_size < 1000


def test_delta_is_refused_for_other_files_and_when_damaged(place: Path, tmp_path: Path) -> None:
    patch = tmp_path / "patch"
    content = delta(place / "net.tenon", place / "newer.tenon")
    patch.write_bytes(content)
    with pytest.raises(InputError, match="is for another file than"):
        apply(place / "newer.tenon", patch)
    rng = random.Random(1)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[rng.randrange(len(MAGIC), len(damaged))] ^= 1 << rng.randrange(8)
        patch.write_bytes(damaged)
        with pytest.raises((BundleError, InputError)):
            apply(place / "net.tenon", patch)
    patch.write_bytes(content[:30])
    with pytest.raises(BundleError, match="is no delta"):
        apply(place / "net.tenon", patch)


# ------------------------------------------------------------------------------------------------ bills of materials
def test_sbom_lists_files_model_and_tools(place: Path, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(network())
    tenon.compile(tmp_path / "net.onnx", no_tuning=True).save(tmp_path / "net.tenon")
    document = json.loads(sbom(tmp_path / "net.tenon"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    kinds = {part["type"]: part["name"] for part in document["components"]}
    assert kinds["machine-learning-model"] == "net.onnx"
    assert kinds["library"] == "tenon-runtime"
    files = [part["name"] for part in document["components"] if part["type"] == "file"]
    assert {name.split("/")[1] for name in files} == {"libnet.so", "net.weights.bin"}
    assert {tool["name"] for tool in document["metadata"]["tools"]["components"]} >= {"tenon"}
    refs = [part["bom-ref"] for part in document["components"]]
    assert len(set(refs)) == len(refs)
    assert document["dependencies"] == [{"ref": "bundle", "dependsOn": refs}]
    assert sbom(tmp_path / "net.tenon") == sbom(tmp_path / "net.tenon")
    assert json.loads(sbom(place / "net"))["components"]
    with pytest.raises(WrongKeyError):
        sbom(place / "sealed.tenon")
    assert json.loads(sbom(place / "sealed.tenon", KEY))["components"]


# ------------------------------------------------------------------------------------------------ commands
def commanded(*words: str | Path) -> None:
    assert run_main(main, list(map(str, words))) == 0


def test_commands(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: bytes) -> None:
    out = tmp_path / "a.tenon"
    commanded("encrypt", place / "net.tenon", "--key-file", place / "key", "-o", out)
    assert out.read_bytes() == (place / "sealed.tenon").read_bytes()
    commanded("decrypt", out, "--key-file", place / "key", "-o", tmp_path / "b.tenon")
    assert (tmp_path / "b.tenon").read_bytes() == (place / "net.tenon").read_bytes()
    commanded("sign", out, "--key-file", place / "private.pem")
    commanded("sign", out, "--public-key", place / "public.pem", "--json")
    assert answer(out, key=KEY, public_key=place / "public.pem") == expected
    commanded("delta", place / "net.tenon", place / "newer.tenon", "-o", tmp_path / "patch")
    commanded("patch", place / "net.tenon", tmp_path / "patch", "-o", tmp_path / "c.tenon")
    assert (tmp_path / "c.tenon").read_bytes() == (place / "newer.tenon").read_bytes()
    capsys.readouterr()
    commanded("sbom", place / "net.tenon")
    assert json.loads(capsys.readouterr().out)["bomFormat"] == "CycloneDX"


def test_inspect_says_what_is_done(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.tenon"
    out.write_bytes(sign(Container(str(place / "sealed.tenon")), place / "private.pem"))
    assert run_main(main, ["inspect", str(out)]) == 2
    assert "is encrypted: give its key" in capsys.readouterr().err
    monkeypatch.setenv("TENON_KEY_FILE", str(place / "key"))
    commanded("inspect", out)
    text = capsys.readouterr().out
    assert "encrypted with AES-256-GCM" in text
    assert f"signed by {Ed25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw().hex()}" in text
    commanded("inspect", out, "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["encrypted"]
    assert report["taken"] == report["targets"][0]["target"]["name"]


# ------------------------------------------------------------------------------------------------ fat bundles
def test_target_of_a_fat_bundle_can_be_chosen(
    place: Path, tmp_path: Path, expected: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Container(str(place / "net.tenon"))
    (own,) = file.targets
    files = {name: file.part(own, name).tobytes() for name in file.files(own)}
    path = tmp_path / "fat.tenon"
    path.write_bytes(container({"riscv64-v": files, own: files, "armv7-neon": files}))
    assert answer(path) == answer(path, target=own) == expected
    with pytest.raises(BundleError, match="and none for armv6: compile the model again with --target armv6"):
        answer(path, target="armv6")
    monkeypatch.setenv("TENON_OPEN_TARGET", "armv6")
    with pytest.raises(BundleError, match="none for armv6"):
        answer(path)
    assert answer(path, target=own) == expected
    monkeypatch.delenv("TENON_OPEN_TARGET")
    commanded("inspect", path, "--json")
    assert json.loads(capsys.readouterr().out)["taken"] == own


@pytest.mark.parametrize(("isa", "taken"), [("rv64imafdc_zicsr_zvfoo", "riscv64"), ("rv64imafdcv_zicsr", "riscv64-v")])
def test_processor_decides_on_riscv(isa: str, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon.machine.targets.host_cpu.processor", lambda: "riscv64")
    monkeypatch.setattr("tenon.machine.targets.host_cpu._listed", lambda what: isa if what == "isa" else "")
    host_cpu.flags.cache_clear()
    host_cpu.runs_here.cache_clear()
    try:
        assert choose_target("a.tenon", ["x86-64", "riscv64-v", "riscv64"]) == taken
    finally:
        host_cpu.flags.cache_clear()
        host_cpu.runs_here.cache_clear()
    assert 'TARGET_ROW("riscv64-v", "v")' in target_rows(find("riscv64"))
