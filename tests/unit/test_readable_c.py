"""Readability of the generated C: no loops of one iteration, no redundant parentheses, comments that state what a
function computes and which layer a call belongs to.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

import tenon
from compiled import lowered_steps
from lowered import MACHINES, Ask
from operator_cases import LOWERED
from real import DIGITS
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.comments import harmless
from tenon.machine.codegen.parentheses import bare
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.targets import targets

ONE_ITERATION = re.compile(r"for \(.*(?:< 1;|slice_end\([^;]*, 1\);)")
NEEDLESS = re.compile(r" = \((?:[^()]|\([^()]*\))*\);| \+ 0\b(?![.x])|[^.\w]0 \+ |\* 1\b(?!\.)|\(\(\w+\)\)")
"""Parentheses around a whole value, and arithmetic that changes nothing."""


@pytest.mark.parametrize(
    ("machine", "sliced"),
    [
        pytest.param(machine, sliced, marks=() if (i, sliced) in ((0, False), (3, True)) else pytest.mark.slow)
        for i, machine in enumerate(MACHINES)
        for sliced in (False, True)
    ],
)
def test_no_redundant_code_in_any_operator_case(machine: str, sliced: bool) -> None:
    unit = C()
    for case in LOWERED.values():
        for step in lowered_steps(case, MACHINES[machine], Ask(blocked=True, surplus=1)):
            unit.kernel(step.kernel, linearise(step.kernel) if sliced else None)
    text = "\n".join(unit.functions)
    assert text.count("for (") > 1000
    assert [m.group() for m in ONE_ITERATION.finditer(text)] == []
    assert [m.group() for m in NEEDLESS.finditer(text)] == []
    assert "- (f32x" not in text  # broadcast scalars have names


@pytest.mark.parametrize("machine", ["lanes1", "lanes8"])
def test_every_helper_is_called(machine: str) -> None:
    """Compilers warn about unused functions."""
    for name, case in LOWERED.items():
        unit = C()
        for step in lowered_steps(case, MACHINES[machine], Ask(blocked=True)):
            unit.kernel(step.kernel)
        text = unit.text()
        called = Counter(re.findall(r"\w+", text))
        idle = [each for each in re.findall(r"^TENON_INLINE [^(]*?(\w+)\(", text, re.M) if called[each] < 2]
        assert not idle, f"{name}: {idle}"


def test_parallel_loops_of_one_iteration_run_in_one_slice() -> None:
    """Two consecutive parallel loops of one iteration: each runs in the slice that contains its work item."""
    k = Builder("pair")
    y = k.param("y", 3, out=True)
    for at in (0, 1):
        with k.loop("i", 1, kind="parallel") as i:
            y[i + at] = 1.0
    kernel = k.done()
    unit = C()
    unit.kernel(kernel, linearise(kernel))
    (text,) = unit.functions
    assert "if (slice_from < 1 && slice_to > 0) {" in text
    assert "if (slice_from < 2 && slice_to > 1) {" in text


def test_no_parentheses_around_whole_expressions() -> None:
    assert bare("((a + b))") == "a + b"
    assert bare("(a + b) * (c + d)") == "(a + b) * (c + d)"
    assert bare("(float)(a)") == "(float)(a)"
    assert bare("f(a)") == "f(a)"
    assert bare("a") == "a"


# ---------------------------------------------------------------------------------------------- comments
HOSTILE = [
    "a */ int evil; /*",
    "b \\",
    "c ??/",
    "d *??/\n/ evil",
    "e\nTENON_OUTLINE void evil(void) {",
    "f \u202e \u00e9 \u03b1 \ud800",
    "// g",
    "reorder(",
    "%s {0} {builtins}",
    "",
    "n" * 1000,
]


def relus(names: Sequence[str]) -> tenon.Graph:
    """Layers with these names, one behind another."""
    nodes = [helper.make_node("Elu", [f"v{i}"], [f"v{i + 1}"], name=name) for i, name in enumerate(names)]
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [2, 3]) for v in ("v0", f"v{len(names)}")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    return tenon.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_comments_is_escaped(text: str) -> None:
    shown = harmless(text)
    assert shown.isascii()
    assert not any(bad in shown for bad in ("*", "\n", "??"))
    assert not shown.endswith("\\")
    assert len(shown) < 130


@pytest.mark.parametrize("target", ["x86-64-avx2", "cortex-m7"])
def test_layer_names_cannot_end_a_comment(target: str, tmp_path: Path) -> None:
    names = [name for name in HOSTILE if name.isprintable() and name.isascii()] + ["\u202e\u03b1", "d *??/\n/ evil"]
    bundle = tenon.compile(relus(names), target=target, name="net", no_tuning=True)
    (tmp_path / "net.h").write_text(bundle.header)
    (tmp_path / "net.c").write_bytes(bundle.source.encode("ascii"))
    code = re.sub(r"/\*.*?\*/", "", bundle.source, flags=re.DOTALL)
    assert "evil" in bundle.source
    assert "evil" not in code
    row = targets()[target]
    for name in ("gcc", "clang"):
        if shutil.which(name):
            flags = [
                "-std=c99",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wcomment",
                "-Wtrigraphs",
                "-O1",
                "-trigraphs",
                *row.flags,
                *row.gcc,
            ]
            command = [name, *flags, "-fsyntax-only", str(tmp_path / "net.c")]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            assert process.returncode == 0, process.stderr[:2000]


def test_banner_states_model_options_and_version(tmp_path: Path) -> None:
    path = DIGITS / "digits.onnx"
    bundle = tenon.compile(path, target="cortex-m7", max_weights=10**6)
    top = bundle.source.partition("*/")[0]
    memory, macs = bundle.program.memory, sum(call.macs for call in bundle.program.calls)
    assert macs > 0
    for word in (
        "digits.onnx (onnx)",
        f"Tenon {tenon.__version__}",
        "cortex-m7",
        "max_weights=1000000",
        "any of C99",
        f"{memory.constant:,} bytes",
        f"{memory.mutable:,} bytes",
        f"{memory.activations:,} bytes",
        f"{macs:,} multiply-accumulates",
        "6 layers in 8 kernel calls",
    ):
        assert word in top
    assert bundle.header.startswith(top)
    assert "winograd" not in top  # the default for such a target
    assert str(path.parent) not in bundle.source + bundle.header
    copy = tmp_path / "digits.onnx"
    copy.write_bytes(path.read_bytes())
    again = tenon.compile(copy, target="cortex-m7", max_weights=10**6, cache=tmp_path)
    assert (again.source, again.header) == (bundle.source, bundle.header)
    other = tenon.compile(path, target="x86-64-avx2", winograd=0, no_tuning=True).source.partition("*/")[0]
    assert "Options:   winograd=0\n" in other
    assert "GCC or Clang" in other


@pytest.mark.parametrize("options", [{"target": "cortex-m7"}, {"target": "x86-64-avx2", "profile": True}])
def test_calls_are_commented_with_their_layer(options: dict[str, Any]) -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", no_tuning=True, **options)
    lines = bundle.source.splitlines()
    calls = [
        i for i, line in enumerate(lines) if re.match(r" +(if \(part == 0\) )?\w+\(\(.*(Weight|activations)", line)
    ]
    assert len(calls) == len(bundle.program.calls) * (2 if "profile" in options else 1)
    assert all(re.fullmatch(r" +/\* \w+: .* -> \[[\d, ]+\].* \*/", lines[i - 1]) for i in calls)
    assert "/* conv2: Conv+Relu -> [1, 24, 4, 4], 24x12x3x3, strides 2, pads 1 */" in bundle.source


def test_every_kernel_has_a_comment() -> None:
    unit = C()
    for case in LOWERED.values():
        for step in lowered_steps(case, MACHINES["lanes4"], Ask(blocked=True, surplus=1)):
            assert step.kernel.about, step.kernel.name
            assert step.kernel.about.isascii(), step.kernel.name
            assert "*/" not in step.kernel.about
            unit.kernel(step.kernel)
    assert unit.text().count("*/\nTENON_OUTLINE void ") == len(unit.functions)


# ---------------------------------------------------------------------------------------------- compilers
def compiled(bundle: tenon.Bundle, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    (folder / f"{bundle.name}.h").write_text(bundle.header)
    (folder / f"{bundle.name}.c").write_text(bundle.source)
    command = [gcc, "-std=c99", "-Wall", "-Wextra", "-Werror", *flags, "-c", f"{bundle.name}.c"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_unsupported_compilers_give_an_error_message(tmp_path: Path) -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", target="x86-64", no_tuning=True)
    assert compiled(bundle, tmp_path, "-O1").returncode == 0
    assert "needs GCC or Clang" in compiled(bundle, tmp_path, "-U__GNUC__").stderr
    assert "without -ffast-math" in compiled(bundle, tmp_path, "-ffast-math").stderr


def test_one_lane_is_strict_c99(tmp_path: Path) -> None:
    """GCC with __GNUC__ undefined: no extensions are used. (GCC's math.h does not support that.)"""
    (tmp_path / "math.h").write_text("#define INFINITY 1e30f\nfloat sqrtf(float x);\n")
    bundle = tenon.compile(DIGITS / "digits.onnx", target="cortex-m7")
    process = compiled(bundle, tmp_path, "-U__GNUC__", "-pedantic-errors", "-I.")
    assert process.returncode == 0, process.stderr[:2000]
    assert "without -ffast-math" in compiled(bundle, tmp_path, "-ffast-math").stderr
