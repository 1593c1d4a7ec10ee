"""Options of the test run."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, metavar="FOLDER", help="append each test's seconds of processor time there")
    parser.addoption("--update-golden", action="store_true", help="write what tests find into the golden files")
    parser.addoption("--record-models", type=Path, metavar="FOLDER", help="keep the small models that tests load there")


def pytest_configure(config: pytest.Config) -> None:
    # Rewriting the assertions of all files takes four times as long as reading what was kept from the run before.
    sys.dont_write_bytecode = False
    if folder := config.getoption("--record-models"):
        from fuzzing.corpus import recording

        stack = ExitStack()
        stack.enter_context(recording(folder))
        config.add_cleanup(stack.close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m quick``, files without such tests are not even imported, which takes longer than the tests."""
    quick = config.getoption("-m") == "quick" and collection_path.suffix == ".py"
    return True if quick and "mark.quick" not in collection_path.read_text() else None


SLOW = Path(__file__).with_name("slow_tests.txt")


def listed_as_slow() -> set[str]:
    return {line for line in SLOW.read_text().splitlines() if not line.startswith("#")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that are marked or listed as slow, unless -m names them or they alone are asked for."""
    listed = listed_as_slow()
    for item in items:
        if item.nodeid in listed and item.nodeid not in config.args and not item.get_closest_marker("quick"):
            item.add_marker("slow")
    if "slow" in config.getoption("-m"):
        return
    slow = {item for item in items if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=list(slow))
    items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    """The garbage collector need not look at the tests and modules again and again: they stay."""
    gc.freeze()


def _processor_seconds() -> float:
    """The time of this process and its children, which does not depend on what else the machine does."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    running = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()  # the server of commands, browsers
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(map(_seconds_of, running))


def _seconds_of(process: str) -> float:
    """The time of a process and its ended children; 0 for one that is gone."""
    try:
        numbers = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = item.config.getoption("--costs")
    start = _processor_seconds()
    result = yield
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{os.getpid()}.txt").open("a") as file:
            file.write(f"{_processor_seconds() - start:.2f} {item.nodeid}\n")
    return result


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have their natural width, independent of the terminal that the tests run in."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", _size_of_terminal)


def _size_of_terminal(fallback: tuple[int, int] = (80, 24)) -> os.terminal_size:
    return os.terminal_size((int(os.environ.get("COLUMNS", fallback[0])), fallback[1]))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="module")
def every_kernel_divided() -> Iterator[None]:
    """Threads share the kernels of small networks too."""
    from tenon.machine.codegen import threads

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "TINY", 0)
        threads._items.cache_clear()
        yield
    threads._items.cache_clear()
