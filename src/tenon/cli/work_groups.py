"""Sizes of work groups of kernels on GPUs: the first run of a network measures them, and adds them to a file
(``runtime/c/device_groups.c``)."""

from __future__ import annotations

from pathlib import Path

from tenon.atomic_write import check_writable
from tenon.errors import InputError
from tenon.machine.targets import find
from tenon.machine.targets.runner import Runner
from tenon.network.graph.graph import Graph
from tenon.options import Options
from tenon.pipeline import compile
from tenon.runtime.engine import open_bundle


def check_groups(options: Options, runner: Runner | None, path: Path) -> None:
    """Raises InputError where sizes of work groups cannot be measured, or not be written to the file."""
    if find(options.target).backend not in ("opencl", "vulkan", "cuda"):
        raise InputError(
            f"--gpu-parameters: target {options.target} has no work groups to choose: give --target opencl"
        )
    if runner is not None:
        raise InputError(f"--gpu-parameters: networks on GPUs do not run on {runner.name} yet: leave out --device")
    check_writable(path)


def tune_groups(graph: Graph, options: Options, path: Path) -> None:
    """Measure the sizes that the file lacks of a network's kernels on this machine's device, with the algorithms of the
    tuning table.  Raises ResourceError if there is no device."""
    with open_bundle(compile(graph, options), gpu={"tune": path}) as engine:
        engine.run()
