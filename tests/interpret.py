"""The interpreter of the loop IR: the reference semantics that all generated code is compared with.

A value is an array of its lanes.  Everything that C leaves undefined is an error here: an index out of range
in any one dimension, a register or stack cell read before it is written, a store to a constant, a shift by more
than the width, a float that does not fit the integer it is cast to.

A thread is a generator that pauses at each barrier; a thread loop runs its threads in lockstep between barriers, so a
barrier that some of them do not reach is an error and not a hang. Iterations of a parallel loop run in reverse order,
since their order must not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.ir.graph import Array
from tenon.ir.index import Index, Var
from tenon.ir.loops import (
    Alloc,
    Barrier,
    Bind,
    Buffer,
    Const,
    Expr,
    Guarded,
    If,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    Outline,
    Prefetch,
    Ref,
    Stmt,
    Store,
)
from tenon.ir.types import DType


class KernelError(Exception):
    """A kernel did something undefined."""


def numpy_type(dtype: DType) -> np.dtype[np.generic]:
    """The NumPy type of elements in the interpreter: that of ``DType.numpy``, except that bools and storage formats are
    held as their bits.
    """
    return np.dtype(np.uint8) if dtype is DType.BOOL else dtype.carrier.numpy


# ------------------------------------------------------------------------------------------ operations
def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    quotient = a // b
    short = (a != quotient * b) & ((a < 0) != (b < 0))
    result: Array = np.where(b == 0, 0, quotient + short)
    return result


def _shift(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        if ((b < 0) | (b >= a.itemsize * 8)).any():
            raise KernelError(f"shift of {a.dtype} by {b.tolist()}")
        return np.asarray(function(a, b))

    return apply


def _bits(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.asarray(function(a, b))


def _mask(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: -np.asarray(function(a, b)).astype(np.int8)


def _select(mask: Array, a: Array, b: Array) -> Array:
    if not np.isin(mask, (0, -1)).all():
        raise KernelError(f"select by {mask.tolist()}, which is not a mask")
    return np.where(mask, a, b)


def _reduce_sum(a: Array) -> Array:
    """The sum of all lanes, the upper half onto the lower until one is left."""
    while len(a) > 1:
        a = a[: len(a) // 2] + a[len(a) // 2 :]
    return a


def _dot4(acc: Array, a: Array, b: Array) -> Array:
    products = a.view(np.uint8).astype(np.int32) * b.view(np.int8).astype(np.int32)
    total: Array = acc + products.reshape(-1, 4).sum(1, dtype=np.int32)
    return total


def _dot4_signed(acc: Array, a: Array, b: Array) -> Array:
    products = a.view(np.int8).astype(np.int32) * b.view(np.int8).astype(np.int32)
    total: Array = acc + products.reshape(-1, 4).sum(1, dtype=np.int32)
    return total


def _dot4_narrow(acc: Array, a: Array, b: Array) -> Array:
    if (b.view(np.int8) == -128).any():
        raise KernelError("dot4_narrow by -128")
    return _dot4_signed(acc, a, b)


def _blocks(acc: Array, a: Array, b: Array) -> Array:
    rows = (a if a.dtype == np.uint8 else a.view(np.int8)).reshape(2, 8).astype(np.int32)
    total: Array = acc + (rows @ b.view(np.int8).reshape(2, 8).astype(np.int32).T).reshape(-1)
    return total


def _dot2(acc: Array, a: Array, b: Array) -> Array:
    first, second = (_bf16_to_f32(a.view(np.uint16)[i::2]) * _bf16_to_f32(b.view(np.uint16)[i::2]) for i in (0, 1))
    total: Array = (acc + second) + first
    return total


def _dot2_i16(acc: Array, a: Array, b: Array) -> Array:
    products = a.view(np.int16).astype(np.int32) * b.view(np.int16).astype(np.int32)
    total: Array = acc + products.reshape(-1, 2).sum(1, dtype=np.int32)
    return total


def _bytes_from(first: int) -> Callable[[Array], Array]:
    return lambda a: np.ascontiguousarray(a.view(np.int8)[first::2]).astype(np.int16).view(np.int32)


def _nearest_add(a: Array, b: Array) -> Array:
    span = np.iinfo(np.int32)
    whole = np.clip(np.rint(a.astype(np.float64)), span.min, span.max).astype(np.int64)
    return np.clip(whole + b, span.min, span.max).astype(np.int32)


def _mulh_add(a: Array, b: Array, c: Array) -> Array:
    high = (a.astype(np.int64) * b + (1 << 31)) >> 32
    return np.asarray((high + c).astype(np.int32))


OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "mod": np.fmod,
    "max": lambda a, b: _select(_mask(np.less)(b, a), a, b),
    "min": lambda a, b: _select(_mask(np.less)(a, b), a, b),
    "shl": _shift(np.left_shift), "shr": _shift(np.right_shift),
    "and": _bits(np.bitwise_and), "or": _bits(np.bitwise_or), "xor": _bits(np.bitwise_xor),
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "less": _mask(np.less), "less_equal": _mask(np.less_equal),
    "equal": _mask(np.equal), "not_equal": _mask(np.not_equal),
    "select": _select,
    "dot16": lambda acc, a, b: acc + _dot4_signed(np.zeros(4, np.int32), a, b).sum(dtype=np.int32, keepdims=True),
    "vector4": lambda *scalars: np.concatenate(scalars),
    "reduce_add": _reduce_sum,
    "reduce_max": lambda a: a.max(keepdims=True), "reduce_min": lambda a: a.min(keepdims=True),
    "dot4": _dot4, "dot4_signed": _dot4_signed, "dot4_narrow": _dot4_narrow, "dot2": _dot2, "mul_rounded": np.multiply,
    "interleave4": lambda a: np.ascontiguousarray(a.view(np.uint8).reshape(4, -1).T).view(np.int32).reshape(-1),
    "dot2_i16": _dot2_i16, "even_bytes": _bytes_from(0), "odd_bytes": _bytes_from(1), "mulh_add": _mulh_add,
    "mmla": lambda acc, a, b: _blocks(acc, a.view(np.uint8), b), "mmla_signed": lambda acc, a, b: _blocks(acc, a, b),
    "low_words": lambda a, b: np.stack([a, b], 1).reshape(-1)[:4], "low_halves": lambda a, b: np.append(a[:2], b[:2]),
    "high_words": lambda a, b: np.stack([a, b], 1).reshape(-1)[4:], "high_halves": lambda a, b: np.append(a[2:], b[2:]),
    "add_i16x2": lambda a, b: (a.view(np.int16) + b.view(np.int16)).view(np.int32),
    "sub_i16x2": lambda a, b: (a.view(np.int16) - b.view(np.int16)).view(np.int32),
    "pair_i16": lambda a, b: (a & 0xFFFF) | (b << 16), "saturate_i8": lambda a: np.clip(a, -128, 127),
    "nearest_add": _nearest_add, "sqrdmulh": lambda a, b: ((a.astype(np.int64) * b + (1 << 30)) >> 31).astype(np.int32),
}  # fmt: skip
"""Every row of ``OPS`` but cast, bitcast and broadcast, whose meaning needs the result's type."""


def _bf16_to_f32(bits: Array) -> Array:
    """bf16 bits to f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _f32_to_bf16(a: Array) -> Array:
    """f32 to bf16 bits, rounded to nearest even; NaN stays NaN."""
    bits = a.view(np.uint32)
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    return np.where(np.isnan(a), bits >> 16 | 0x40, rounded).astype(np.uint16)


def _convert(a: Array, source: DType, target: DType) -> Array:
    if DType.BF16 not in (source, target):
        return _cast(a, numpy_type(target))
    if {source, target} != {DType.BF16, DType.F32}:
        raise KernelError(f"cast of {source} to {target}: bf16 is widened to f32 and narrowed from it only")
    return _bf16_to_f32(a) if target is DType.F32 else _f32_to_bf16(a)


def _cast(a: Array, dtype: np.dtype[Any]) -> Array:
    if a.dtype.kind == "f" and dtype.kind in "iu":
        limits, whole = np.iinfo(dtype), np.trunc(a.astype(np.float64))
        if not ((whole >= limits.min) & (whole <= limits.max)).all():
            raise KernelError(f"cast of {a.tolist()} to {dtype}")
    return a.astype(dtype)


# -------------------------------------------------------------------------------------------- running
Env = dict[Var, int]


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


class _Cells:
    """The memory of a buffer: its elements, and a mask of those that have been written."""

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], data: Array | None) -> None:
        self.buffer, self.shape = buffer, shape
        whole = (*shape, buffer.type.lanes)
        self.data = np.zeros(whole, numpy_type(buffer.type.dtype)) if data is None else data.reshape(whole)
        self.written = None if data is not None else np.zeros(shape, bool)

    def window(self, at: tuple[int, ...], lanes: int) -> tuple[tuple[int, ...], slice]:
        """The index of ``lanes`` lanes from ``at``. Raises KernelError if it is out of range in any dimension."""
        count = lanes // self.buffer.type.lanes
        reach = (*at[:-1], at[-1] + count - 1)
        for d, (low, high, extent) in enumerate(zip(at, reach, self.shape, strict=True)):
            if low < 0 or high >= extent:
                raise KernelError(f"{self.buffer.name}{list(self.shape)}: {list(at)}, {lanes} lanes, dimension {d}")
        return at[:-1], slice(at[-1], at[-1] + count)

    def read(self, at: tuple[int, ...], lanes: int) -> Array:
        outer, inner = self.window(at, lanes)
        if self.written is not None and not self.written[outer][inner].all():
            raise KernelError(f"{self.buffer.name}{list(at)} is read before it is written")
        lanes_read: Array = self.data[outer][inner].reshape(-1).copy()
        return lanes_read

    def write(self, at: tuple[int, ...], value: Array) -> None:
        if self.buffer.space == "const":
            raise KernelError(f"store to the constant {self.buffer.name}")
        outer, inner = self.window(at, len(value))
        self.data[outer][inner] = value.reshape(-1, self.buffer.type.lanes)
        if self.written is not None:
            self.written[outer][inner] = True


class _Thread:
    """One flow of control: the values of its variables, names and private buffers, and the shared memory."""

    def __init__(
        self, memory: dict[Buffer, _Cells], env: Env, names: dict[Ref, Array], own: dict[Buffer, _Cells]
    ) -> None:
        self.memory, self.env, self.names, self.own = memory, env, names, own

    def child(self, var: Var, value: int) -> _Thread:
        return _Thread(self.memory, {**self.env, var: value}, dict(self.names), dict(self.own))

    def holds(self, facts: tuple[Index, ...]) -> bool:
        return all(evaluate(f, self.env) >= 0 for f in facts)

    def cells(self, buffer: Buffer) -> _Cells:
        cells = self.own.get(buffer) or self.memory.get(buffer)
        if cells is None:
            raise KernelError(f"{buffer.name} is used before its Alloc")
        return cells

    def where(self, at: tuple[Index, ...]) -> tuple[int, ...]:
        return tuple(evaluate(i, self.env) for i in at)

    # ---------------------------------------------------------------------------------- expressions
    def value(self, e: Expr) -> Array:
        """The lanes of an expression, of exactly its type."""
        result = self._value(e)
        if len(result) != e.type.lanes or result.dtype != numpy_type(e.type.dtype):
            raise KernelError(f"{e} is {len(result)} lanes of {result.dtype}, not {e.type}")
        return result

    def _value(self, e: Expr) -> Array:
        match e:
            case Op():
                return self._operation(e)
            case Load():
                return self.cells(e.buffer).read(self.where(e.index), e.type.lanes)
            case Ref():
                return self.names[e]
            case Const():
                dtype = e.type.dtype
                value = e.value if dtype.carrier is dtype else dtype.bits(e.value)
                return np.full(e.type.lanes, value, numpy_type(dtype))
            case Guarded():
                return self.value(e.value if self.holds(e.facts) else e.other)
        raise KernelError(f"{e} is no expression")

    def _operation(self, e: Op) -> Array:
        args, dtype = [self.value(a) for a in e.args], numpy_type(e.type.dtype)
        if e.name == "broadcast":
            return np.repeat(args[0], e.type.lanes)
        if e.name == "bitcast":
            return args[0].view(dtype)
        if e.name == "cast":
            return _convert(args[0], e.args[0].type.dtype, e.type.dtype)
        operands = args[1:] if e.name == "select" else args
        if (
            e.name not in ("dot4", "dot4_signed", "dot4_narrow", "dot2", "nearest_add")
            and len({a.dtype for a in operands}) > 1
        ):
            raise KernelError(f"{e.name} of {', '.join(str(a.dtype) for a in args)}")
        return OPERATIONS[e.name](*args).astype(dtype)

    # ----------------------------------------------------------------------------------- statements
    def run(self, body: Sequence[Stmt]) -> Iterator[None]:
        """Run statements, pausing at each barrier."""
        for s in body:
            if _pauses(s):
                yield from self._paused(s)
            else:
                self._do(s)

    def finish(self, body: Sequence[Stmt]) -> None:
        for s in body:
            self._do(s)

    def _do(self, s: Stmt) -> None:
        match s:
            case Let():
                self.names[s.ref] = self.value(s.value)
            case Store():
                self.cells(s.buffer).write(self.where(s.index), self.value(s.value))
            case Prefetch():
                self.where(s.index)  # a prefetch may point anywhere
            case Alloc():
                self._allocate(s.buffer)
            case Outline():
                self.finish(s.body)
            case If():
                if self.holds(s.facts):
                    self.finish(s.body)
            case Bind():
                self._bind(s)
                self.finish(s.body)
            case Loop():
                for thread in self._iterations(s):
                    thread.finish(s.body)
            case Barrier():
                raise KernelError("a barrier outside of run()")

    def _paused(self, s: Stmt) -> Iterator[None]:
        match s:
            case Barrier():
                yield
            case Outline():
                yield from self.run(s.body)
            case If():
                if self.holds(s.facts):
                    yield from self.run(s.body)
            case Bind():
                self._bind(s)
                yield from self.run(s.body)
            case Loop() if s.kind.startswith("thread"):
                yield from _run_lockstep([thread.run(s.body) for thread in self._iterations(s)])
            case Loop():
                for thread in self._iterations(s):
                    yield from thread.run(s.body)

    def _bind(self, s: Bind) -> None:
        below = min(evaluate(b, self.env) for b in s.var.below)
        if below < 1:
            raise KernelError(f"{s.var.name} has no value: its range is empty")
        self.env[s.var] = min(max(int(self.value(s.value)[0]), 0), below - 1)

    def _iterations(self, s: Loop) -> Iterator[_Thread]:
        """This thread for each iteration of a serial loop; a new thread for each iteration of any other."""
        iterations = range(min(evaluate(b, self.env) for b in s.var.below))
        if s.kind in ("serial", "unroll"):
            for i in iterations:
                self.env[s.var] = i
                yield self
            return
        for i in reversed(iterations):
            if s.kind.startswith("block"):
                for buffer in [b for b in self.memory if b.space == "shared"]:
                    del self.memory[buffer]
            yield self.child(s.var, i)

    def _allocate(self, buffer: Buffer) -> None:
        cells = _Cells(buffer, self.where(buffer.shape), None)
        if buffer.space == "shared":
            self.memory.setdefault(buffer, cells)
        else:
            self.own[buffer] = cells


def _run_lockstep(threads: list[Iterator[None]]) -> Iterator[None]:
    """Run all threads, in lockstep from barrier to barrier."""
    while threads:
        waiting = [thread for thread in threads if next(thread, "done") != "done"]
        if waiting and len(waiting) < len(threads):
            raise KernelError("a barrier that some threads never reach")
        threads = waiting
        if threads:
            yield


def _pauses(s: Stmt) -> bool:
    return isinstance(s, Barrier) or (isinstance(s, Loop | Bind | If | Outline) and any(map(_pauses, s.body)))


def interpret(kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None) -> None:
    """Run a kernel over one array per parameter, of the parameter's type and size; writes into the arrays. Raises
    KernelError for undefined behaviour.
    """
    env: Env = {v: (sizes or {})[v.name] for v in kernel.sizes}
    memory: dict[Buffer, _Cells] = {}
    for buffer, array in zip(kernel.params, arrays, strict=True):
        data = array.view(np.uint8) if array.dtype == np.bool_ else array
        if data.dtype != numpy_type(buffer.type.dtype) or not data.flags.c_contiguous:
            raise KernelError(f"{buffer.name} wants contiguous {buffer.type}, not {array.dtype}")
        shape = tuple(evaluate(i, env) for i in buffer.shape)
        if data.size != np.prod(shape, dtype=int) * buffer.type.lanes:
            raise KernelError(f"{buffer.name}{list(shape)} does not fit an array of {array.shape}")
        memory[buffer] = _Cells(buffer, shape, data)
    with np.errstate(all="ignore"):
        for _ in _Thread(memory, env, {}, {}).run(kernel.body):
            pass  # every thread has reached the barrier
