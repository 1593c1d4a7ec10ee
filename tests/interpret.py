"""The interpreter of the loop IR: the reference semantics that all generated code is compared with.

A value is an array of its lanes.  Everything that C leaves undefined is an error here: an index out of range
in any one dimension, a register or stack cell read before it is written, a store to a constant, a shift by more
than the width, a float that does not fit the integer it is cast to.

A kernel is run as a Python program (``interpreted_code``). A thread is a generator that pauses at each barrier; a
thread loop runs its threads in lockstep between barriers, so a barrier that some of them do not reach is an error and
not a hang. Iterations of a parallel loop run in reverse order, since their order must not matter; that of threads
between two barriers, and that of blocks, does not matter because an element that one of them writes and another one
touches is an error, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from interpreted_code import program
from interpreted_memory import Cells
from loop_operations import KernelError, numpy_type
from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Kernel
from tenon.network.graph.graph import Array


def evaluate(i: Index, env: Mapping[Var, int]) -> int:
    """The value of an index, given its variables."""
    total = i.const
    for atom, k in i.terms:
        if isinstance(atom, Var):
            total += k * env[atom]
            continue
        of = evaluate(atom.of, env)
        if of < 0:
            raise KernelError(f"{atom!r} of {of}, which is negative")
        total += k * (of % atom.by if atom.rest else of // atom.by)
    return total


def interpret(kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None) -> None:
    """Run a kernel over one array per parameter, of the parameter's type and size; writes into the arrays. Raises
    KernelError for undefined behaviour.
    """
    sizes = sizes or {}
    env = {v: sizes[v.name] for v in kernel.sizes}
    memory = []
    for buffer, array in zip(kernel.params, arrays, strict=True):
        data = array.view(np.uint8) if array.dtype == np.bool_ else array
        if data.dtype != numpy_type(buffer.type.dtype) or not data.flags.c_contiguous:
            raise KernelError(f"{buffer.name} wants contiguous {buffer.type}, not {array.dtype}")
        shape = tuple(evaluate(i, env) for i in buffer.shape)
        if data.size != math.prod(shape) * buffer.type.lanes:
            raise KernelError(f"{buffer.name}{list(shape)} does not fit an array of {array.shape}")
        memory.append(Cells(buffer, shape, data))
    with np.errstate(all="ignore"):
        for _ in program(kernel, sizes)(*memory):
            pass  # every thread has reached the barrier
