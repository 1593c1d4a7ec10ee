"""Launches of a CUDA graph wait for all that they depend on, and for nothing else."""

from __future__ import annotations

import pytest

import tenon
from gpu_devices import needs_compiler
from onnx_models import model, node, random
from tenon.machine.codegen.gpu.launch_order import order_tables, waited_for
from tenon.machine.codegen.threads import depends
from tenon.machine.plan.program import Program


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    needs_compiler("cuda")


def of_branches(count: int) -> Program:
    """The program of a convolution, of others of its result, and of their sum."""
    nodes = [node("Conv", ["x", "w0"], ["a"])]
    nodes += [node("Conv", ["a", f"w{i}"], [f"b{i}"], pads=[i - 1, 0, i - 1, 0]) for i in range(1, count + 1)]
    nodes.append(node("Softmax", ["a"], ["c"], axis=1))
    nodes.append(node("Sum", [*(f"b{i}" for i in range(1, count + 1)), "c"], ["y"]))
    weights = {f"w{i}": random(16, 16, max(1, 2 * i - 1), 1, seed=i) for i in range(count + 1)}
    content = model(nodes, {"x": [1, 16, 12, 12]}, ["y"], weights).SerializeToString()
    return tenon.compile(content, target="cuda", no_tuning=True).program


def test_launches_wait_for_all_that_they_depend_on() -> None:
    program = of_branches(3)
    *before, last = waited_for(program)
    calls, reached = program.calls, list[set[int]]()
    assert len(before) == len(calls)
    for own in before:
        reached.append(set(own).union(*(reached[number] for number in own)))
    needed = [{i for i in range(number) if depends(call, calls[i])} for number, call in enumerate(calls)]
    assert all(wanted <= got for wanted, got in zip(needed, reached, strict=True))
    assert all(set(own) <= wanted for own, wanted in zip(before, needed, strict=True))  # and for nothing else
    assert set(last).union(*(reached[number] for number in last)) == set(range(len(calls)))
    assert any(own != [number - 1] for number, own in enumerate(before) if number)
    assert not any(b in reached[a] for own in before for a in own for b in own)  # nor for what these wait for


def test_there_is_no_table_where_launches_follow_each_other() -> None:
    nodes = [node("Conv", ["x", "v"], ["a"]), node("Softmax", ["a"], ["b"], axis=1), node("Conv", ["b", "v"], ["y"])]
    content = model(nodes, {"x": [1, 16, 12, 12]}, ["y"], {"v": random(16, 16, 1, 1)}).SerializeToString()
    program = tenon.compile(content, target="cuda", no_tuning=True).program
    assert len(program.calls) > 2
    assert order_tables(program) == []


def test_tables_have_where_the_numbers_of_each_launch_end() -> None:
    program = of_branches(2)
    before = waited_for(program)
    waited, ends = (
        [int(word) for word in table.partition("{")[2].replace("}", "").replace(";", "").split(",") if word.strip()]
        for table in order_tables(program)
    )
    assert [waited[a:b] for a, b in zip([0, *ends], ends, strict=False)] == before
