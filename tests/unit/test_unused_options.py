"""Every option of every command has an effect, or is refused: none is ignored."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import tenon
import tenon.cli
from command_line import run_main
from real import DIGITS
from tenon.cli.app import app
from tenon.cli.option_groups import BundleOptions, Model, PreprocessOptions
from tenon.cli.option_tables import CHOICES, entry, panel
from tenon.cli.unused_options import option_name

MODEL = str(DIGITS / "digits.onnx")
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "chat": ("conversations.chat", ["m.onnx"]),
    "serve": ("serve.serve", ["m.onnx"]),
    "compile": ("commands.compile_model", ["m.onnx", "-o", "out"]),
    "run": ("run.run_model", ["m.onnx"]),
    "verify": ("verify.verify_model", ["m.onnx"]),
    "inspect": ("commands.inspect_model", ["m.onnx"]),
    "benchmark": ("benchmark.benchmark", ["m.onnx"]),
    "profile": ("profile.profile_model", ["m.onnx"]),
    "tune": ("tune.tune_models", ["m.onnx"]),
    "bench-op": ("bench_op.bench_operators", []),
    "optimize": ("optimize.rewrite_model", ["m.onnx"]),
    "quantize": ("quantize.quantize_model", ["m.onnx", "-o", "q.onnx"]),
    "compare": ("compare.compare_networks", ["m.onnx", "b.onnx", "--data", "d"]),
    "validate": ("validate.validate_model", ["m.onnx"]),
    "evaluate": ("evaluate.evaluate_model", ["m.onnx"]),
    "convert": ("convert.convert_deployment", ["--config", "d.yml"]),
    "targets": ("list_targets.list_targets", []),
    "devices": ("deploy.list_devices", []),
    "deploy": ("deploy.deploy_to_devices", ["m.onnx"]),
    "sdk": ("sdk.write_sdk", ["-o", "sdk"]),
    "encrypt": ("protection.encrypt_to", ["a", "-o", "b", "--key-file", "k"]),
    "decrypt": ("protection.decrypt_to", ["a", "-o", "b", "--key-file", "k"]),
    "sign": ("protection.sign_to", ["a.tenon", "--key-file", "k"]),
    "sbom": ("protection.write_sbom", ["a"]),
    "delta": ("protection.written", ["a", "b", "-o", "c"]),
    "patch": ("protection.written", ["a", "b", "-o", "c"]),
}
"""The function that carries out each command, and the words that it needs."""

VALUES = {
    "--shape": "x=1,2",
    "--value": "x=3",
    "--input": "x=a.npy",
    "--data-format": "NHWC",
    "--data-type": "x=int8",
    "--range": "0,1",
    "--state": "h=hn",
    "--max": "n=3",
    "--head": "ssd strides=8",
    "--ram": "64K",
    "--affinity": "0",
    "--mean": "1",
    "--scale": "2",
    "--compile-preprocess": "8x8",
    "--labels": "labels.txt",
    "--key-file": "key",
    "--key-env": "KEY",
    "--cores": "big",
    "--mixed-types": "int16",
    "--overlap": "0.3",
    "--zoo": ".",
    "--io": "integer",
    "--gpu": "cache=kept",
    "--top-p": "0.5",
    "--grammar": "rules.gbnf",
    "--min-p": "0.5",
}
"""Values of options that not every text is a value of."""

ELSEWHERE = {
    "--verbose": "the program's own: test_exit_status",
    "--key-file": "is in force while the command runs: test_encrypted_models",
    "--devices": "only with --device or a name: test_devices_file",
    "--key-env": "excludes --key-file: test_protection",
    "--model": "validate takes it with a deployment file only",
    "--ranges-format": "only with --save-ranges: test_range_files",
    "--text": "is spoken or embedded by another function: test_voice, test_safetensors",
    "--phonemes": "is spoken by another function: test_voice",
    "--public-key": "is in force while the command runs: test_protection",
    "--minimum-version": "with --public-key only: test_protection",
    "--reference": "with --metric perplexity only: test_perplexity",
    "--timestamps": "of speech only: test_live_speech",
    "--stream": "of speech only: test_live_speech",
}
"""Options whose effect is not an argument of the function."""


def _command(name: str) -> Any:
    return typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]


def _options(name: str) -> Iterator[Any]:
    """The options of a command, without --help."""
    for parameter in _command(name).params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            yield parameter


def _value(name: str, option: Any) -> str:
    long = max(option.opts, key=len)
    if long in VALUES:
        return VALUES[long]
    if choices := [each for each in entry(CHOICES, name, long) if each != option.default]:
        return choices[-1]
    kind = str(option.type_descriptor.annotation)
    if "int" in kind or "float" in kind:
        return "2" if option.default != 2 else "3"
    return "word"


def test_all_commands_are_listed() -> None:
    assert COMMANDS.keys() == typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]


TEXT = "run --prompt"
"""``tenon run`` of a language model, which takes other options than that of other networks."""


@pytest.mark.parametrize("name", [*COMMANDS, TEXT])
def test_options_reach_the_function_of_the_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.txt").write_text("cat\n")
    Path("m.onnx").write_bytes(b"")
    Path("key").write_bytes(bytes(32))
    Path("rules.gbnf").write_text('root ::= "a"\n')
    Path("word").write_bytes(b"")  # of options that name a file to read
    calls: list[str] = []

    def record(*given: Any, words: Any = None, **named: Any) -> None:  # words: the command line itself
        calls.append(repr((given, named)))

    text = name == TEXT
    function_name, needed = ("language_models.complete", ["m.onnx", "--prompt", "a"]) if text else COMMANDS[name]
    name = name.split()[0]
    module, _, function = function_name.partition(".")
    monkeypatch.setattr(
        importlib.import_module(f"tenon.cli.{module}"),
        function,
        record,
    )
    if name in ("delta", "patch"):
        monkeypatch.setattr("tenon.runtime.bundle.delta.delta", lambda *given: given)
        monkeypatch.setattr("tenon.runtime.bundle.delta.apply", lambda *given: given)
    words = [name, *needed]
    assert run_main(tenon.cli.main, words) == 0, capsys.readouterr().err
    ignored = []
    for option in _options(name):
        long = max(option.opts, key=len)
        if long in words or set(option.opts) & set(words) or long in ELSEWHERE:
            continue
        if name == "run" and (panel(name, long) == "Text" and long != "--language") != text:
            continue
        given = (
            [min(option.secondary_opts, key=len) if option.default is True else long]
            if option.is_flag
            else [long, _value(name, option)]
        )
        status = run_main(tenon.cli.main, [*words, *given])
        if status or calls[-1] == calls[0] or len(calls) < 2:
            ignored.append(f"{' '.join(given)}: {status} {capsys.readouterr().err}")
    assert not ignored


def test_names_of_the_fields_of_groups() -> None:
    """Messages name options as they are written."""
    options = {option.name: option.opts for name in COMMANDS for option in _options(name)}
    for group in (BundleOptions, Model, PreprocessOptions):
        for field in group.__dataclass_fields__.keys() - {"model"}:
            assert option_name(field) in options[field]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_given_twice_is_refused(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one alone would count."""
    module, _, function = COMMANDS[name][0].partition(".")
    monkeypatch.setattr(importlib.import_module(f"tenon.cli.{module}"), function, lambda *given, **named: None)
    for option in _options(name):
        long = max(option.opts, key=len)
        if option.multiple or long == "--verbose":
            continue
        given = [long, *(option.secondary_opts[:1] or [long])] if option.is_flag else [long, "a", long, "b"]
        status = run_main(tenon.cli.main, [name, *given])
        refused = f"{long} is given 2 times" in capsys.readouterr().err
        assert refused == (not option.is_flag or bool(option.secondary_opts)), long
        assert status == 2 or not refused


# ------------------------------------------------------------------------------------------------ bundles
@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder and a ``.tenon`` file, each a bundle of the digits network, and an input."""
    from tenon.runtime.bundle.writer import save_container

    folder = tmp_path_factory.mktemp("bundles")
    bundle = tenon.compile(MODEL, profile=True)
    bundle.save(folder / "net")
    save_container(folder / "net.tenon", [bundle])
    np.save(folder / "x.npy", np.zeros((1, 1, 8, 8), np.float32))
    np.save(folder / "samples.npy", np.zeros((2, 1, 1, 8, 8), np.float32))
    np.savez(folder / "expected.npz", probabilities=np.full((2, 10), 0.1, np.float32))
    (folder / "classes.txt").write_text("1\n2\n")
    return folder


OF_BUNDLES: dict[str, list[str]] = {
    "run": ["--input", "x.npy"],
    "inspect": [],
    "verify": [],
    "benchmark": ["--rounds", "1", "--warmup", "0"],
    "profile": ["--rounds", "1", "--warmup", "0"],
    "validate": ["--data", "samples.npy", "--expected", "expected.npz"],
    "evaluate": ["--data", "samples.npy", "--ground-truth", "classes.txt"],
    "deploy": ["--device", "board"],
}
"""The commands that take bundles, and the words that they need."""

COMPILING = {option_name(name) for name in BundleOptions.__dataclass_fields__} | {
    "--weights",
    "--shape",
    "--value",
    "--sha256",
    "--from",
    "--to",
}


ALLOWED = {"run": {"--labels"}}
"""Options of the same names that are about results."""


@pytest.mark.parametrize("name", OF_BUNDLES)
@pytest.mark.parametrize("form", ["net", "net.tenon"])
def test_options_of_compiling_are_refused_for_bundles(
    name: str, form: str, bundles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bundles)
    options = [
        o
        for o in _options(name)
        if max(o.opts, key=len) in COMPILING - {"--target", "--threads"} - ALLOWED.get(name, set())
    ]
    assert len(options) > 4 or name == "deploy"
    for option in options:
        long = max(option.opts, key=len)
        given = [long] if option.is_flag else [long, {"--labels": "classes.txt"}.get(long, _value(name, option))]
        status = run_main(tenon.cli.main, [name, form, *OF_BUNDLES[name], *given])
        said = capsys.readouterr()
        assert status == 2, long
        assert "no effect" in said.err or "compile the model again" in said.err or "fixed when" in said.err, said.err


@pytest.mark.parametrize("name", sorted(OF_BUNDLES.keys() - {"deploy", "inspect", "verify"}))
@pytest.mark.parametrize("form", ["net", "net.tenon"])
def test_the_target_of_a_bundle(
    name: str, form: str, bundles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has to be one that the bundle has code for."""
    monkeypatch.chdir(bundles)
    words = [name, form, *OF_BUNDLES[name], "--target"]
    if name == "validate":
        words[-1:] = ["--threshold", "-1", "--max-error", "99", "--min-sqnr", "-99", "--target"]
    assert run_main(tenon.cli.main, [*words, "no-such"]) == 2
    assert "no-such" in capsys.readouterr().err
    assert run_main(tenon.cli.main, [*words, "cortex-m4"]) == 2
    assert "cortex-m4" in capsys.readouterr().err
    own = tenon.open("net").manifest.target.name
    for target in (own, "host"):
        assert run_main(tenon.cli.main, [*words, target]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "net", "--input", "x.npy", "--threshold", "0.3"], "--threshold: no effect: no detections are listed"),
        (["run", "net", "--input", "x.npy", "--overlap", "0.3"], "--overlap: no effect"),
        (["run", "net", "a.png", "--image", "b.png"], "--image b.png: the image a.png is given already"),
        (["validate", MODEL, "--model", "net", "--data", "x.npy"], "--model: no effect: it selects models of"),
        (["validate", "d.yml", "--data", "x.npy"], "--data: no effect: d.yml states"),
        (["validate", "d.yml", "--expected", "x.npz", "--against", "litert"], "--against, --expected: no effect"),
        (["validate", "d.yml", "--precision", "fp16", "-O", "1"], "--precision, -O: no effect"),
        (["validate", "d.yml", "--mean", "1", "--shape", "x=1,2"], "--mean, --shape: no effect"),
        (["deploy", "net", "--device", "d", "--rollback", "--precision", "fp16"], "--precision: no effect: --rollback"),
        (["optimize", "c.ini", "-o", "x", "--shape", "x=1"], "--out, --shape: no effect: c.ini names"),
        (["sign", "net.tenon", "--public-key", "k.pem", "-o", "x"], "leave out -o"),
        (["compare", "net", "net.tenon", "--data", "samples.npy", "--arithmetic", "tflm"], "--arithmetic: no effect"),
        (["quantize", MODEL, "--data", "samples.npy", "-o", "q.onnx", "--metric", "top1"], "--metric: no effect"),
        (["quantize", MODEL, "--data", "samples.npy", "-o", "q.onnx", "--mixed-types", "int16"], "--mixed-types"),
        (["quantize", MODEL, "--data", "samples.npy", "-o", "q.onnx", "--ranges-format", "mace"], "--ranges-format"),
        (
            ["quantize", MODEL, "--data", "samples.npy", "-o", "q.onnx", "--ground-truth", "classes.txt"],
            "--ground-truth",
        ),
    ],
)
def test_options_that_do_not_apply(
    words: list[str], says: str, bundles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bundles)
    for name in ("a.png", "b.png", "x.npz"):
        Path(name).write_bytes(b"")
    assert run_main(tenon.cli.main, words) == 2
    assert says in " ".join(capsys.readouterr().err.split())
