"""Integer models on emulated Cortex-M boards: results of TFLite Micro bit for bit, and exact instruction counts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import handmade
import tenon
from integer_models import MODELS, inputs, model, records
from on_targets import skip_without_device
from real import DIGITS, ROOT
from story_model import story_model
from tenon.machine.toolchain.size import sizes
from tenon.runtime.bundle import Bundle, read_manifest
from tenon.runtime.engine.device import RemoteBundle, _probe
from tenon.runtime.engine.instruction_count import Counted, count

CORES = ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
CALLER = 16
"""Bytes of the frame of ``tenon_run``, at most."""
SLACK = 256
"""Bytes that are reserved and not stored to in these runs: padding, and what is allowed for functions of libraries."""
X = np.linspace(-3, 3, 10, dtype=np.float32).reshape(1, 10)


@pytest.fixture(scope="module")
def instruction_count() -> Iterator[Any]:
    """``bench/instruction_count.py``."""
    folder = str(ROOT / "bench")
    sys.path.insert(0, folder)
    module = import_module("instruction_count")
    if why := module.missing():
        pytest.skip(why)
    yield module
    sys.path.remove(folder)
    del sys.modules["instruction_count"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugin")


def with_loop(bundle: Bundle, iterations: int) -> Bundle:
    """A network that executes 2 * iterations + 3 instructions more, and uses 64 bytes of stack."""
    loop = (
        f'__asm__ volatile("mov r0, #{iterations}\\n1: subs r0, r0, #1\\n bne 1b\\n str r0, [sp, #-4]\\n'
        ' str r0, [sp, #-64]" ::: "r0", "cc", "memory");\n  return 0;'
    )
    return handmade.with_source(bundle, bundle.source.replace("return 0;", loop))


def test_instructions_are_counted_exactly(instruction_count: Any, work: Path) -> None:
    bundle = handmade.bundle("cortex-m4")
    few, more = (instruction_count.count(with_loop(bundle, n), [X, X], work) for n in (100, 235))
    assert few.instructions[0] == few.instructions[1]
    assert more.instructions[0] - few.instructions[0] == 2 * 135
    assert sum(few.functions.values()) == few.instructions[0]
    assert few.stack >= 64
    np.testing.assert_array_equal(few.outputs[0]["y"], few.outputs[1]["y"])


def same_answers(name: str, target: str, count: int) -> None:
    skip_without_device(target)
    graph = tenon.load(model(name))
    bundle = tenon.compile(graph, arithmetic="tflm", target=target, name=name, no_tuning=True)
    given, answers = records(name, "tflm")
    chosen = [*range(count - 1), len(given) - 1]  # random ones, and one recorded with the model
    for i, actual in zip(chosen, RemoteBundle(bundle).run([inputs(graph, given[i]) for i in chosen]), strict=True):
        (got,) = actual.values()
        np.testing.assert_array_equal(np.ascontiguousarray(got).reshape(-1).view(np.uint8), answers[i])


@pytest.mark.parametrize("name", MODELS)
def test_every_model_on_one_core(name: str) -> None:
    same_answers(name, "cortex-m4", 3)


@pytest.mark.parametrize("target", [*CORES, "cortex-m23", "riscv32imc"])
def test_one_model_on_every_core(target: str) -> None:
    same_answers("kws", target, 8)


def bounded(name: str, target: str) -> tuple[Bundle, Counted]:
    """A model for a board, and what the emulator counts."""
    skip_without_device(target)
    graph = tenon.load(model(name))
    bundle = tenon.compile(graph, arithmetic="tflm", target=target, name=name, no_tuning=True)
    given, _ = records(name, "tflm")
    return bundle, count(bundle, [inputs(graph, given[0])])


@pytest.mark.parametrize(("name", "target"), [("kws", "cortex-m4"), ("ad", "cortex-m0plus"), ("speech", "riscv32imc")])
def test_stack_is_bounded_by_the_frames_of_the_deepest_calls(name: str, target: str) -> None:
    """The high-water mark includes the frame of the probe's function that calls the entry point."""
    bundle, counted = bounded(name, target)
    assert bundle.stack is not None
    assert counted.stack - CALLER <= bundle.stack <= counted.stack + SLACK


SAMPLED = {("kws", "cortex-m4"), ("speech", "cortex-m4"), ("ad", "cortex-m0plus"), ("sww", "cortex-m55")}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=() if (name, target) in SAMPLED else pytest.mark.slow)
        for name in MODELS
        for target in CORES
    ],
)
def test_instructions_are_bounded_within_a_tenth(name: str, target: str) -> None:
    """The emulator also counts the probe's function that calls the entry point."""
    bundle, counted = bounded(name, target)
    bound, (measured,) = bundle.instructions, counted.instructions
    assert bound is not None, bundle.bounds
    assert measured - CALLER <= bound.total <= measured * 1.1
    assert bound.calls is not None
    assert bound.total - 50 * len(bound.calls) < sum(bound.calls) < bound.total


def test_a_story_model_fits_a_cortex_m4() -> None:
    """260 k parameters in 8 bits within 512 kB of flash and 128 kB of RAM; instructions of a token at most, of which
    the emulator counts those of the last one that the cache has room for."""
    shapes = {"length": "1..1", "past": "0..87"}
    bundle = tenon.compile(story_model(), target="cortex-m4", shapes=shapes, no_tuning=True)
    memory, bound = bundle.interface.memory, bundle.instructions
    code = sizes(bundle.object).code
    assert memory.constant + code < 320 << 10
    assert bundle.stack is not None
    assert memory.mutable + memory.activations + bundle.stack < 128 << 10
    assert bound is not None, bundle.bounds
    caches = {value.name: value.type.dims for value in bundle.program.inputs if value.type.rank == 4}
    state = {name: np.zeros(dims, np.float32) for name, dims in caches.items()}
    feeds = {"tokens": np.array([[3]]), "length": np.array(1), "past": np.array(87), **state}
    (measured,) = count(bundle, [feeds]).instructions
    # Attention runs over blocks of keys, of which each counts as a full one.
    assert measured - CALLER <= bound.total <= measured * 2


def test_a_story_model_writes_the_same_text_on_a_cortex_m4() -> None:
    model, shapes = story_model(), {"length": "1..1", "past": "0..7"}
    with tenon.open(tenon.compile(model, shapes=shapes)) as engine:
        tokens = [1]
        for _ in range(4):
            tokens.append(int(engine.run({"tokens": np.array([tokens[-1:]])})["logits"].argmax()))
    skip_without_device("cortex-m4")
    remote = RemoteBundle(tenon.compile(model, target="cortex-m4", shapes=shapes))
    state: dict[str, np.ndarray] = {}
    for at, token in enumerate(tokens[:-1]):
        (results,) = remote.run([{"tokens": np.array([[token]]), **state}])
        assert int(results["logits"].argmax()) == tokens[at + 1]
        kept = {name: array for name, array in results.items() if array.ndim == 4}
        state = {name.replace("present", "past_key_values"): array for name, array in kept.items()}
        state["past"] = np.array(at + 1)
    assert len(set(tokens)) > 3


def test_header_and_manifest_state_the_instructions(tmp_path: Path) -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", target="cortex-m4", no_tuning=True)
    bound = bundle.instructions
    assert bound is not None
    assert bound.calls is not None
    folder = bundle.save(tmp_path / "out")
    header, manifest = (folder / "digits.h").read_text(), read_manifest(folder)
    assert manifest.instructions == bound.total
    assert tuple(step.instructions for step in manifest.nodes) == bound.calls
    assert f"#define DIGITS_MAX_INSTRUCTIONS {bound.total}\n" in header
    (first, *_) = manifest.nodes
    assert f'#define DIGITS_CALL_INSTRUCTIONS(X) \\\n  X("{first.layer}", {first.kernel}, {bound.calls[0]})' in header
    assert handmade.bundle("riscv32imc").instructions is None


def test_header_and_manifest_state_the_stack(tmp_path: Path) -> None:
    bundle = handmade.bundle("cortex-m4")
    array = "volatile uint8_t array[64]; for (int i = 0; i < 64; i++) array[i] = mutableWeight[i]; return array[7];"
    bundle = handmade.with_source(bundle, bundle.source.replace("return 0;", array))
    folder = bundle.save(tmp_path / "out")
    assert f"#define AFFINE_STACK_SIZE {bundle.stack}\n" in (folder / "affine.h").read_text()
    assert read_manifest(folder).memory.stack == bundle.stack
    assert bundle.stack is not None
    assert 64 <= bundle.stack < 128
    assert handmade.bundle("aarch64").stack is None


@pytest.mark.parametrize("target", ["cortex-m4", "aarch64"])
def test_programs_contain_no_more_than_they_use(target: str) -> None:
    """Beside the network there are start-up code, input and output, memcpy and its like."""
    bundle = tenon.compile(DIGITS / "digits.onnx", target=target, no_tuning=True)
    program = sizes(_probe(bundle, "run"))
    assert 0 < program.code - sizes(bundle.object).code < 1000
    assert len(bundle.weights) <= program.data < len(bundle.weights) + 1000


@pytest.mark.slow
def test_table_of_targets() -> None:
    """``scripts/targets``: digest, instructions, code, RAM and stack of every target that is named."""
    for target in ("cortex-m4", "riscv32imc", "wasm32"):
        skip_without_device(target)
    command = [sys.executable, str(ROOT / "bench" / "targets.py"), str(model("kws")), "--arithmetic", "tflm"]
    named = [word for target in ("cortex-m4", "riscv32imc", "wasm32") for word in ("--target", target)]
    done = subprocess.run([*command, *named], capture_output=True, text=True, check=True, timeout=300)
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines())
    assert head == ["model", "target", "digest", "instructions", "code", "RAM", "stack"]
    assert [row[1] for row in rows] == ["cortex-m4", "riscv32imc", "wasm32"]
    assert len({row[2] for row in rows}) == 1, "the digests of an integer network"
    numbers = [[int(cell.replace(",", "")) for cell in row[3:6]] for row in rows]
    assert all(number > 1000 for row in numbers for number in row)
    assert [bool(row[6]) for row in rows] == [True, True, False]
