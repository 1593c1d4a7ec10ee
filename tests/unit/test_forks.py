"""Engines in forked processes, also while other threads of the parent run them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import handmade
import tenon
from handmade import expected
from tenon.runtime.engine import Engine, loading
from tenon.runtime.engine.processors import Pinning

X = np.linspace(-3, 3, 10, dtype=np.float32).reshape(1, 10)
DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
CHILDREN, SECONDS = 20, 20

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade.bundle(rounds=20_000).save(tmp_path_factory.mktemp("affine") / "affine")


@contextmanager
def repeated(work: Callable[[], object]) -> Iterator[None]:
    """Repeats ``work`` in another thread."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.is_set():
            work()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_child(work: Callable[[], bool]) -> bool:
    """Whether ``work`` returns true in a forked process before the timeout."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(SECONDS)
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_fork_while_another_thread_runs_the_engine(folder: Path) -> None:
    with Engine(folder) as engine, repeated(lambda: engine.run(X)):
        right = expected(X + 1, 20_000)
        assert all(in_child(lambda: np.allclose(engine.run(X + 1)["y"], right, rtol=1e-6)) for _ in range(CHILDREN))


@pytest.mark.usefixtures("every_kernel_divided")
def test_fork_while_a_thread_pool_runs() -> None:
    with tenon.open(tenon.compile(DIGITS), threads=2) as engine:
        x = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
        right = engine.run(x)["probabilities"]

        def child() -> bool:
            same = np.array_equal(engine.run(x)["probabilities"], right)
            engine.close()
            return same

        with repeated(lambda: engine.run(x)):
            assert all(in_child(child) for _ in range(CHILDREN))
        assert np.array_equal(engine.run(x)["probabilities"], right)


def test_fork_while_another_thread_opens_a_bundle(folder: Path) -> None:
    def opened() -> bool:
        with Engine(folder) as engine:
            return bool(np.allclose(engine.run(X)["y"], expected(X, 20_000), rtol=1e-6))

    with loading._libraries._lock:  # as while a library is being loaded
        assert in_child(opened)


_engine: Engine


def _answer(i: int) -> bytes:
    return _engine.run((X + i).astype(np.float32))["y"].tobytes()


def test_multiprocessing(folder: Path) -> None:
    global _engine
    with Engine(folder) as _engine:
        numbers = range(12)
        right = [_answer(i) for i in numbers]
        with repeated(lambda: _engine.run(X)), multiprocessing.get_context("fork").Pool(3) as pool:
            assert pool.map_async(_answer, numbers).get(timeout=SECONDS) == right


def test_child_does_not_change_the_affinity_of_parent_threads() -> None:
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        pytest.skip("there is one processor only")
    pinning = Pinning(frozenset({min(processors)}))
    try:
        pinning.pin()

        def child() -> bool:
            pinning.release()
            return True

        assert in_child(child)
        assert os.sched_getaffinity(0) == {min(processors)}
    finally:
        pinning.release()
    assert os.sched_getaffinity(0) == processors
