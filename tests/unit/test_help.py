"""The help: every command is in a group, every option in a panel, with its default and its choices."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import tenon.cli
from command_line import run_main
from tenon import quantization
from tenon.cli import option_tables as tables
from tenon.cli.app import app
from tenon.cli.examples import EXAMPLES, PROGRAM
from tenon.cli.help_text import default_text, long_name, metavar
from tenon.cli.text_wrap import columns, wrapped
from tenon.network.graph.preprocessing import Preprocessing
from tenon.options import _VARIABLES, Options
from tenon.runtime.engine.processors import _KINDS
from tenon.tools.quantization.range_files import FORMATS

PROGRAM_GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = dict(PROGRAM_GROUP.commands)
FIELDS = {
    "-O": "optimize",
    "--compiler": "compiler",
    "--table": "tuning",
    "--winograd": "winograd",
    "--strassen": "strassen",
}
"""Options that are not called as the field of ``Options`` that they set."""


def options_of(name: str) -> Iterator[tuple[str, Any]]:
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option":
            yield long_name(parameter), parameter


ALL = [(command, option, parameter) for command in COMMANDS for option, parameter in options_of(command)]
KEYS = {key for command, option, _ in ALL for key in (option, f"{command} {option}")}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_main(tenon.cli.main, list(words)) == 0
    return capsys.readouterr().out


def test_every_command_is_in_one_group() -> None:
    listed = [name for names in tables.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)


def test_every_option_is_in_a_panel() -> None:
    assert not {f"{command} {option}" for command, option, _ in ALL if not tables.panel(command, option)}


def test_every_default_is_stated() -> None:
    """A switch is off, which the help says once; everything else says what happens without it."""
    silent = {
        f"{command} {option}"
        for command, option, parameter in ALL
        if not default_text(command, parameter)
        and not parameter.required
        and not (parameter.is_flag and parameter.default is False and not parameter.secondary_opts)
    }
    assert not silent, "state these in option_tables.DEFAULTS"


def test_every_value_says_what_it_is() -> None:
    assert not {f"{command} {option}" for command, option, p in ALL if not p.is_flag and not metavar(command, p)}


@pytest.mark.parametrize("table", [tables.DEFAULTS, tables.VARIABLES, tables.CHOICES])
def test_tables_name_no_other_options(table: dict[str, Any]) -> None:
    assert not table.keys() - KEYS


def test_panels_name_no_other_options() -> None:
    programs = {"--version", "--help", "--install-completion", "--show-completion"}
    assert not {name for names in tables.PANELS.values() for name in names} - KEYS - programs


def test_defaults_are_those_of_the_options() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(Options)}
    for option, text in tables.DEFAULTS.items():
        value = fields.get(FIELDS.get(option, option.removeprefix("--").replace("-", "_")))
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
            assert text == str(value), option
    for name, value in Preprocessing()._asdict().items():
        if name in ("channels", "fit", "border", "sampling"):
            assert tables.DEFAULTS[f"--{name}"].endswith(f"else {value}"), name


def test_environment_variables_are_those_of_the_options() -> None:
    fields = {"-O": "optimize", "--compiler": "compiler", "--table": "tuning"}
    for option, variable in tables.VARIABLES.items():
        name = option.rpartition(" ")[2]
        assert _VARIABLES[fields.get(name, name.removeprefix("--").replace("-", "_"))] == variable
    named = {option.rpartition(" ")[2] for option in tables.VARIABLES}
    for field, variable in _VARIABLES.items():
        if field != "cache":
            assert variable in tables.VARIABLES.values(), (field, named)


def test_choices_are_those_of_the_program() -> None:
    hints = {name: _names(kind) for name, kind in Options.__annotations__.items()}
    assert tables.CHOICES["--precision"] == ("fp32", "fp16", "bf16")
    assert set(tables.CHOICES["--scheme"]) == {"auto", *quantization.SCHEMES}
    assert set(tables.CHOICES["--method"]) == {"auto", *quantization.METHODS}
    assert tables.CHOICES["--rounding"] == quantization.ROUNDING
    assert tables.CHOICES["--ranges-format"] == FORMATS
    assert set(tables.CHOICES["--cores"]) == set(_KINDS)
    for option in ("-O", "--arithmetic", "--c99", "--float-abi", "--obfuscate", "--strassen", "--winograd"):
        field = FIELDS.get(option, option.removeprefix("--").replace("-", "_"))
        assert set(tables.CHOICES[option]) == hints[field], option
    for option in ("channels", "fit", "sampling"):
        assert _names(Preprocessing.__annotations__[option]) <= set(tables.CHOICES[f"--{option}"])


def _names(annotation: Any) -> set[str]:
    """The values in a Literal, as its source has them."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", str(annotation))
    literal = re.search(r"Literal\[([^]]*)\]", text)
    return {part.strip().strip("\"'") for part in literal[1].split(",")} if literal else set()


def test_choices_are_refused_with_the_one_that_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value, words in (
        (
            "--precision",
            "int8",
            "choose one of fp32, fp16, bf16; a model in 8-bit integers is made by 'tenon quantize'",
        ),
        ("--arithmetic", "tflite", "choose one of tflm, litert, onnx, float; did you mean litert?"),
        ("--winograd", "3", "choose one of 0, 2, 4"),
    ):
        assert run_main(tenon.cli.main, ["compile", "absent.onnx", "-o", "out", option, value]) == 2
        assert capsys.readouterr().err == f"tenon: {option} {value}: {words}\n"


def test_help_of_the_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, "-h")
    assert text == shown(capsys, "--help")
    assert max(map(columns, text.splitlines())) <= 80
    assert "..." not in text, "a description was cut"
    flat = " ".join(text.split())
    for name, command in COMMANDS.items():
        assert " ".join(command.help.split("\n\n")[0].split()) in flat, name
    assert all(line in text for _, line in PROGRAM)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, name, "-h")
    assert text == shown(capsys, name, "--help")
    assert max(map(columns, text.splitlines())) <= 80
    assert text.startswith(f"Usage: tenon {name} ")
    assert len(EXAMPLES[name]) >= 2
    for what, line in EXAMPLES[name]:
        assert f"$ {line}\n" in text
        assert line.split()[:2] == ["tenon", name]
        assert what in text
    for option, parameter in options_of(name):
        assert option in text
        if parameter.required:
            continue
        if not parameter.is_flag or parameter.secondary_opts:
            flat = " ".join(text.split())
            assert f"default: {default_text(name, parameter)}" in flat, option
    assert "<str>" not in text
    assert "Other options" not in text


def test_wrapped_text() -> None:
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("a|bb|ccc|dddd", 6) == ["a|bb|", "ccc|", "dddd"]
    assert wrapped("longerthanaline x", 6) == ["longer", "thanal", "ine x"]
    assert wrapped("", 5) == [""]
    assert columns("模型 a") == 6
    assert wrapped("编译模型，然后运行。", 8) == ["编译模", "型，然后", "运行。"]  # noqa: RUF001
    assert all(columns(line) <= 20 for line in wrapped("在目标平台上运行模型 model.onnx，或者打开 bundle。" * 3, 20))  # noqa: RUF001
