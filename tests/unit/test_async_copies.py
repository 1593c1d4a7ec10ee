"""Asynchronous copies and clusters of blocks: what the proofs refuse, what they mean, and what backends print."""

from __future__ import annotations

import numpy as np
import pytest

from check_kernels import FaultError, check
from interpret import interpret
from loop_operations import KernelError
from mutants import mutants
from tenon.errors import FormatError, InternalError
from tenon.machine.codegen.backend import find
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.network.graph.graph import Array

PIPELINE = """
kernel pipeline(const x: f32[8, 64], global y: f32[64]) {
  alloc shared s: f32[3, 64]
  for thread t < 64 {
    alloc register a: f32[1]
    a[0] = 0.0: f32
    copy s[0, t] = load x[0, t]
    commit
    copy s[1, t] = load x[1, t]
    commit
    for k < 8 {
      wait 1
      barrier
      if -1*k + 5 >= 0 { copy s[(k + 2 % 3), t] = load x[k + 2, t] }
      commit
      a[0] = add(load a[0], load s[(k % 3), -1*t + 63])
    }
    y[t] = load a[0]
  }
}"""
STRIPS = """
kernel strips(const x: f16[3, 14, 8], global y: f16[3, 16, 8]) {
  for block b < 3 {
    alloc shared s: f16[16, 8]
    for thread t < 8 {
      for unroll e < 2 {
        copy s[t + 8*e, 0] = when(13 + -1*t + -8*e >= 0; load x[b, t + 8*e, 0]: f16x8; broadcast(0.0: f16): f16x8)
      }
      commit
      wait 0
      barrier
      for unroll e < 2 { for i < 8 { y[b, t + 8*e, i] = load s[-1*t + -8*e + 15, i] } }
    }
  }
}"""
CLUSTER = """
kernel cluster(const x: f32[2, 4, 8], global y: f32[2, 8]) {
  for block b < 2 {
    alloc cluster sums: f32[4, 8]
    for cluster c < 4 {
      alloc shared s: f32[8]
      for thread t < 8 {
        s[t] = load x[b, c, t]
        barrier
        sums[c, t] = load s[-1*t + 7]
        barrier cluster
        if -1*t + 1 >= 0 {
          y[b, 2*c + t] = add(add(load sums[0, 2*c + t], load sums[1, 2*c + t]),
                              add(load sums[2, 2*c + t], load sums[3, 2*c + t]))
        }
        barrier cluster
      }
    }
  }
}"""
LONG = PIPELINE.replace("f32[8, 64]", "f32[20, 64]").replace("k < 8", "k < 20").replace("-1*k + 5", "-1*k + 17")
CORRECT = {"pipeline": PIPELINE, "long": LONG, "strips": STRIPS, "cluster": CLUSTER}
EARLY = "is read before its copy has arrived"
TOUCHED = "is touched before its copy has arrived"
RACE = "one element of s between two barriers"
FAULTY = {
    "no wait": (STRIPS, "wait 0", "", TOUCHED),
    "wait for all but one": (STRIPS, "wait 0", "wait 1", TOUCHED),
    "no end of the group": (STRIPS, "commit", "", TOUCHED),
    "no barrier": (STRIPS, "wait 0\n      barrier", "wait 0", EARLY),
    "barrier before the wait": (STRIPS, "wait 0\n      barrier", "barrier wait 0", EARLY),
    "too few strips": (STRIPS, "for unroll e < 2 {\n", "for unroll e < 1 {\n", EARLY),
    "strips over one another": (STRIPS, "copy s[t + 8*e, 0]", "copy s[t + 7*e, 0]", RACE),
    "one strip twice": (STRIPS, "copy s[t + 8*e, 0]", "copy s[t, 0]", "copies twice"),
    "past the source": (STRIPS, "13 + -1*t", "14 + -1*t", "load of x, dimension 1: passes the end by 1"),
    "past the tile": (STRIPS, "copy s[t + 8*e, 0]", "copy s[t + 9*e, 0]", "store of s, dimension 0: passes the end"),
    "two bytes": (
        STRIPS,
        "load x[b, t + 8*e, 0]: f16x8; broadcast(0.0: f16): f16x8",
        "load x[b, t + 8*e, 0]; 0.0: f16",
        "4, 8 or 16 bytes",
    ),
    "rows beside the image": (STRIPS, "broadcast(0.0: f16): f16x8", "load x[b, 0, 0]: f16x8", "or a constant"),
    "stage that is read": (PIPELINE, "s[(k + 2 % 3), t] =", "s[(k % 3), t] =", TOUCHED),
    "stage on its way": (PIPELINE, "load s[(k % 3)", "load s[(k + 1 % 3)", TOUCHED),
    "wait too little": (PIPELINE, "wait 1", "wait 2", TOUCHED),
    "no wait in the loop": (PIPELINE, "wait 1", "", "no wait for them"),
    "one stage too few": (PIPELINE, "(k + 2 % 3)", "(k + 2 % 2)", TOUCHED),
    "first copies missing": (PIPELINE, "copy s[1, t] = load x[1, t]", "", EARLY),
    "copy before the barrier": (PIPELINE, "barrier", "", EARLY),
    "long: stage on its way": (LONG, "load s[(k % 3)", "load s[(k + 1 % 3)", TOUCHED),
    "long: stage that is read": (LONG, "s[(k + 2 % 3), t] =", "s[(k % 3), t] =", TOUCHED),
    "long: wait too little": (LONG, "wait 1", "wait 2", TOUCHED),
    "long: copy before the barrier": (LONG, "barrier", "", EARLY),
    "long: one thread too far": (
        LONG,
        "copy s[(k + 2 % 3), t]",
        "copy s[(k + 2 % 3), (t // 2)]",
        "two threads may write",
    ),
    "wait under a test": (PIPELINE, "wait 1", "if t + -1 >= 0 { wait 1 }", "a wait, stands under a test"),
    "group under a test": (PIPELINE, "wait 1", "if t + -1 >= 0 { commit } wait 1", "a wait, stands under a test"),
    "pending at the end": (
        PIPELINE,
        "y[t] = load a[0]",
        "copy s[0, t] = load x[0, t] commit y[t] = load a[0]",
        "pending at the end",
    ),
    "stored and copied": (PIPELINE, "y[t] = load a[0]", "y[t] = load a[0] s[0, t] = 1.0: f32", "stored to as well"),
    "no barrier of the cluster": (CLUSTER, "barrier cluster", "barrier", "one element of sums between two barriers"),
    "no barrier at the end": (CLUSTER, "}\n        barrier cluster", "}", "a block may end while"),
    "barrier of the block at the end": (CLUSTER, "}\n        barrier cluster", "} barrier", "a block may end while"),
    "part of another": (
        CLUSTER,
        "}\n        barrier cluster",
        "} sums[0, t] = 1.0: f32 barrier cluster",
        "stores in another's part of sums",
    ),
    "block past the cluster": (
        CLUSTER,
        "load sums[3,",
        "load sums[4,",
        "load of sums, dimension 0: passes the end by 1",
    ),
    "results of two blocks": (CLUSTER, "y[b, 2*c + t]", "y[b, c + t]", "two blocks may write one element of y"),
    "sums not written": (
        CLUSTER,
        "sums[c, t] = load s[-1*t + 7]",
        "if -1*t + 6 >= 0 { sums[c, t] = load s[-1*t + 7] }",
        "cluster sums is read before it is written",
    ),
    "barrier of no cluster": (PIPELINE, "barrier", "barrier cluster", "outside of one"),
}


def data(text: str) -> list[Array]:
    rng = np.random.default_rng(1)
    kernel = parse(text)
    shapes = [[extent.const for extent in buffer.shape] for buffer in kernel.params]
    arrays = zip(shapes, kernel.params, strict=True)
    return [rng.standard_normal(shape).astype(buffer.type.dtype.numpy) for shape, buffer in arrays]


@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_are_proved(name: str) -> None:
    kernel = parse(CORRECT[name])
    assert show(parse(show(kernel))) == show(kernel)
    assert prove(kernel) > 0
    assert check(show(kernel)) > 0


@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_refused(name: str) -> None:
    """By the proof, and by the second check of all iterations."""
    text, line, faulty, message = FAULTY[name]
    assert line in text
    kernel = parse(text.replace(line, faulty, 1))
    with pytest.raises(OutOfRangeError, match=message):
        prove(kernel)
    if name in ACCEPTED_BY_THE_CHECK:
        assert check(show(kernel)) > 0
    else:
        with pytest.raises(FaultError):
            check(show(kernel))


def test_constants_are_copied_beside_an_image() -> None:
    """Zero points of bytes are no zeros."""
    text = STRIPS.replace("broadcast(0.0", "broadcast(1.0")
    assert text != STRIPS
    prove(parse(text))
    assert check(text) > 0


ACCEPTED_BY_THE_CHECK = {
    "rows beside the image": "no instruction copies so, but what it would mean is known",
    "stored and copied": "the proof keeps them apart, because it need not compare them then",
    "barrier of no cluster": "blocks that are alone meet",
}
"""Faults that only the proof refuses, and why."""

FOUND_BY_RUNNING = [
    "no wait",
    "no end of the group",
    "no barrier",
    "barrier before the wait",
    "stage that is read",
    "stage on its way",
    "wait too little",
    "first copies missing",
    "pending at the end",
    "copy before the barrier",
    "no barrier of the cluster",
    "no barrier at the end",
    "part of another",
    "sums not written",
    "barrier of no cluster",
]


@pytest.mark.parametrize("name", FOUND_BY_RUNNING)
def test_the_interpreter_finds_faults(name: str) -> None:
    text, line, faulty, _ = FAULTY[name]
    with pytest.raises(KernelError):
        interpret(parse(text.replace(line, faulty, 1)), data(text))


@pytest.mark.parametrize("name", ["pipeline", "strips", "cluster"])
def test_what_is_proved_runs_without_a_fault(name: str) -> None:
    """The kernels have one fault each: both proofs refuse most, and what either accepts, the interpreter runs."""
    accepted = count = 0
    for what, text in mutants(show(parse(CORRECT[name]))):
        try:
            kernel = parse(text)
        except FormatError:
            continue
        count += 1
        try:
            prove(kernel)
        except (OutOfRangeError, InternalError):
            continue
        accepted += 1
        try:
            interpret(kernel, data(text))
        except KernelError as error:
            pytest.fail(f"{what}: {error}\n{text}")
    assert count > 30
    assert accepted < count / 2


def test_meaning() -> None:
    x, y = data(PIPELINE)
    interpret(parse(PIPELINE), [x, y])
    np.testing.assert_allclose(y, x.sum(0)[::-1], rtol=1e-5, atol=1e-6)
    x, y = data(STRIPS)
    interpret(parse(STRIPS), [x, y])
    np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (0, 2), (0, 0)))[:, ::-1])
    x, y = data(CLUSTER)
    interpret(parse(CLUSTER), [x, y])
    np.testing.assert_allclose(y, x.sum(1)[:, ::-1], rtol=1e-5, atol=1e-6)


def test_clusters_are_counted() -> None:
    groups = work_groups(parse(CLUSTER))
    assert groups is not None
    assert (groups.count, groups.size, groups.cluster_size, groups.shared_bytes) == (8, 8, 4, 64)
    assert [groups.place(v) for v in groups.blocks] == [(4, 2), (1, 4)]
    with pytest.raises(InternalError, match="no element for each block"):
        work_groups(parse(CLUSTER.replace("sums: f32[4, 8]", "sums: f32[3, 8]")))


def test_cuda_prints_instructions_and_other_languages_stores() -> None:
    text = find("cuda").kernel(parse(STRIPS))
    assert "cp.async.cg.shared.global" in text
    assert "cp.async.commit_group;" in text
    assert "cp.async.wait_group 0;" in text
    for name in ("opencl", "vulkan", "webgpu"):
        assert "async" not in find(name).kernel(parse(PIPELINE))
        with pytest.raises(InternalError, match="this target has no cluster memory"):
            find(name).kernel(parse(CLUSTER))
    text = find("cuda").kernel(parse(CLUSTER))
    assert text.count("barrier_of_cluster();") == 2
    assert "mapa.u64" in text
