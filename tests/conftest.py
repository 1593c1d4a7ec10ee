"""Options of the test run."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked slow, unless -m names them."""
    if "slow" in config.getoption("-m"):
        return
    slow = {item for item in items if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=list(slow))
    items[:] = [item for item in items if item not in slow]


def pytest_collection_finish() -> None:
    """The garbage collector need not look at the tests and modules again and again: they stay."""
    gc.freeze()


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
