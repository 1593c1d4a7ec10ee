"""The loop IR.  Every kernel is one of these trees: a dialect prints it, ``proofs.bounds`` proves it.

    index  I ::= int | I + I | I * int | v | I // int | I % int
    var    v ::= 0 <= v < every one of below: (I, ...)              a symbolic size is a var too
    fact   F ::= I >= 0                                             conjunctions only
    type   T ::= dtype x lanes
    buffer B ::= name, element type, shape (I, ...), space (global const scratch shared cluster stack register)
    expr   E ::= const | ref | load B[I, ...] : T | op(name, E...) : T | F, ... ? E : E
    stmt   S ::= let | B[I, ...] = E | prefetch | alloc | barrier | barrier cluster
               | copy B[I, ...] = E | commit | wait n
               | for v kind { S... } | bind v = E { S... } | if F, ... { S... } | outline name { S... }
               | instruction name(B[I, ...] ... ; int ...) { S... }
       | call name(B... ; const...) "C source"
    kind     ::= serial unroll parallel block cluster thread
    kernel   ::= name, params B..., sizes v..., { S... }

Loops of kind ``block``, ``cluster`` and ``thread`` are a launch of work groups (``kernel_ir.work_groups``): their
iterations run at the same time, and the threads of one block share memory of space ``shared`` and meet at each
``barrier``; the blocks of a cluster read each other's part of memory of space ``cluster``.

Three ideas carry it.  Indices stay per dimension, so proofs never see a flattened address.  Unrolling is
printing: an ``unroll`` loop stays a loop in the tree, so proofs and counts stay small.  Values are
lane-polymorphic: one generator with lanes = 16, 8, 4 or 1 serves every machine.

A new operation is a row of ``OPS``, one of an instruction set a row of a module of ``machine.isa``, never a new node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenon.machine import isa
from tenon.machine.isa.base import Primitive
from tenon.machine.kernel_ir.index import Index, Var
from tenon.network.graph.types import DType


# ---------------------------------------------------------------------------------------------- values
@dataclass(frozen=True, slots=True)
class Type:
    """``lanes`` elements of ``dtype`` side by side."""

    dtype: DType
    lanes: int = 1

    @property
    def bytes(self) -> int:
        return self.lanes * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}x{self.lanes}" if self.lanes > 1 else str(self.dtype)


class Expr:
    """A value.  Compared by identity: a node used twice is computed once (see ``Builder.emit``)."""

    __slots__ = ()
    type: Type

    def __add__(self, other: Value) -> Expr:
        return op("add", self, other)

    def __sub__(self, other: Value) -> Expr:
        return op("sub", self, other)

    def __mul__(self, other: Value) -> Expr:
        return op("mul", self, other)

    def __truediv__(self, other: Value) -> Expr:
        return op("div", self, other)

    def __lshift__(self, other: Value) -> Expr:
        return op("shl", self, other)

    def __rshift__(self, other: Value) -> Expr:
        return op("shr", self, other)

    def __and__(self, other: Value) -> Expr:
        return op("and", self, other)

    def __radd__(self, other: Value) -> Expr:
        return op("add", other, self)

    def __rsub__(self, other: Value) -> Expr:
        return op("sub", other, self)

    def __rmul__(self, other: Value) -> Expr:
        return op("mul", other, self)

    def __rtruediv__(self, other: Value) -> Expr:
        return op("div", other, self)

    def __neg__(self) -> Expr:
        return op("neg", self)


Value = Expr | float | int


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    value: float | int
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Ref(Expr):
    """The value of a Let."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Load(Expr):
    buffer: Buffer
    index: tuple[Index, ...]
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Op(Expr):
    name: str
    args: tuple[Expr, ...]
    type: Type


@dataclass(frozen=True, slots=True, eq=False)
class Guarded(Expr):
    """``value`` where every fact is >= 0, else ``other``.  Lazy: loads in ``value`` are proved under the facts."""

    facts: tuple[Index, ...]
    value: Expr
    other: Expr

    @property
    def type(self) -> Type:  # type: ignore[override]
        return self.value.type


# Integers wrap around; their quotient and remainder by zero are zero.
OPS: dict[str, Primitive] = {
    **{name: Primitive(2) for name in ("add", "sub", "mul", "div", "max", "min", "mod")},
    **{name: Primitive(2) for name in ("shl", "shr", "and", "or", "xor")},
    **{name: Primitive(1) for name in ("neg", "abs", "sqrt", "floor", "ceil", "round", "trunc")},
    **{name: Primitive(2, "mask") for name in ("less", "less_equal", "equal", "not_equal")},
    "select": Primitive(3, "arg1"),  # mask ? a : b, lane by lane
    "cast": Primitive(1, "given"),  # by value; float to integer truncates, to a narrower float rounds to nearest even
    "bitcast": Primitive(1, "given"),  # by bits, same width in all
    # Four vectors of bytes, one behind the other, as words: each has one byte of every vector, the first's lowest.
    "interleave4": Primitive(1, "given"),
    "broadcast": Primitive(1, "given"),  # one lane to many
    **{name: Primitive(1, "scalar") for name in ("reduce_add", "reduce_max", "reduce_min")},
    **{name: Primitive(2) for name in ("evens", "odds")},  # of the lanes of both vectors, those of even or odd number
    "vector4": Primitive(4, "given"),  # four scalars side by side
    **{f"lane{i}": Primitive(1, "scalar") for i in range(4)},  # an element of a vector
    # (a * b * 2 + 2**31) >> 32 of i32 in 64 bits: the rounding doubling high product; a and b are not both -2**31.
    "sqrdmulh": Primitive(2),
    "mul_rounded": Primitive(2),  # a product of f32 that is rounded by itself: no addition is fused with it
    **isa.primitives(),
}

_MASK = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}
_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
}
_UNIT = {"mul": 1, "div": 1, "sub": 0, "shl": 0, "shr": 0}  # x op unit is x to the bit; x + 0.0 is not


def op(name: str, *args: Value, type: Type | None = None) -> Expr:
    """Build an operation: lift numbers, fold constants, compute broadcasts once at one lane."""
    row = OPS[name]
    if len(args) != row.arity:
        raise TypeError(f"{name} takes {row.arity} arguments, not {len(args)}")
    model = next(a for a in reversed(args) if isinstance(a, Expr))
    lanes = max(a.type.lanes for a in args if isinstance(a, Expr))
    lifted = tuple(a if isinstance(a, Expr) else Const(a, Type(model.type.dtype)) for a in args)
    if name in _FOLD and all(isinstance(a, Const) for a in lifted):
        a, b = lifted
        assert isinstance(a, Const)
        assert isinstance(b, Const)
        return Const(_FOLD[name](a.value, b.value), model.type)
    if name in _UNIT and isinstance(lifted[1], Const) and lifted[1].value == _UNIT[name]:
        return lifted[0]
    if lanes > 1 and row.result in ("same", "mask", "arg1") and all(map(_one_lane, lifted)):
        return broadcast(op(name, *map(_narrow, lifted)), lanes)
    lifted = tuple(broadcast(a, lanes) for a in lifted)
    if type is None:
        first = lifted[0].type
        type = {
            "same": first,
            "arg1": lifted[min(1, row.arity - 1)].type,
            "mask": Type(_MASK[first.dtype.bytes], lanes),
            "scalar": Type(first.dtype),
        }[row.result]
    return Op(name, lifted, type)


def _one_lane(a: Expr) -> bool:
    return a.type.lanes == 1 or (isinstance(a, Op) and a.name == "broadcast")


def _narrow(a: Expr) -> Expr:
    return a.args[0] if isinstance(a, Op) and a.name == "broadcast" else a


def broadcast(a: Expr, lanes: int) -> Expr:
    return a if a.type.lanes == lanes else Op("broadcast", (a,), Type(a.type.dtype, lanes))


def constant_of(e: Expr) -> Const | None:
    """The constant that all lanes of a value are, if they are one."""
    if isinstance(e, Op) and e.name == "broadcast":
        return constant_of(e.args[0])
    return e if isinstance(e, Const) else None


def maximum(a: Value, b: Value) -> Expr:
    """The maximum; NaN if ``b`` is NaN, so pass a bound as ``a``.  If only ``a`` is NaN, the result is either."""
    return op("max", a, b)


def minimum(a: Value, b: Value) -> Expr:
    """The minimum; NaN as for ``maximum``."""
    return op("min", a, b)


def less(a: Value, b: Value) -> Expr:
    """A mask: all ones or zero per lane."""
    return op("less", a, b)


def select(mask: Expr, a: Value, b: Value) -> Expr:
    return op("select", mask, a, b)


def cast(a: Expr, dtype: DType) -> Expr:
    return a if a.type.dtype is dtype else op("cast", a, type=Type(dtype, a.type.lanes))


def bitcast(a: Expr, dtype: DType) -> Expr:
    """The same bits as elements of ``dtype``, as many lanes as that makes."""
    return op("bitcast", a, type=Type(dtype, a.type.bytes // dtype.bytes))


def vector4(a: Expr, b: Expr, c: Expr, d: Expr) -> Expr:
    """Four scalars of a type as a vector."""
    return Op("vector4", (a, b, c, d), Type(a.type.dtype, 4))


def lanes_of(a: Expr) -> list[Expr]:
    """The elements of a vector of four, or a scalar four times."""
    if a.type.lanes == 1:
        return [a] * 4
    return [Op(f"lane{i}", (a,), Type(a.type.dtype)) for i in range(4)]


def lookup(x: Expr, tables: Sequence[Expr]) -> Expr:
    """For every byte of ``x``, as a number without a sign, its entry in a table of 256 bytes.

    The table is in vectors of one type, one behind the other; ``x`` has their dtype and at most as many lanes.
    """
    return Op(f"lookup{len(tables)}", (x, *tables), x.type)


def interleave4(a: Expr) -> Expr:
    """Four vectors of bytes, one behind the other, as one vector of words."""
    return op("interleave4", a, type=Type(DType.Q8, a.type.lanes // 4))


def sqrdmulh(a: Expr, b: Value) -> Expr:
    """The rounding doubling high product of i32: ``a * b / 2**31``, halves up."""
    return op("sqrdmulh", a, b)


def dot2(acc: Expr, a: Expr, b: Expr) -> Expr:
    return op("dot2", acc, a, b)


def fma_f16(acc: Expr, a: Expr, b: Expr) -> Expr:
    """``acc + a * b``, rounded once; ``b`` may have one lane."""
    if acc.type.lanes > b.type.lanes == 1:
        return Op("fma_f16_scalar", (acc, a, b), acc.type)
    return op("fma_f16", acc, a, b)


def of_pairs(function: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """``function`` of neighbouring lanes of vectors: of those of ``a``, then of those of ``b``."""
    return function(op("evens", a, b), op("odds", a, b))


def reduced_each(function: Callable[[Expr, Expr], Expr], vectors: Sequence[Expr]) -> list[Expr]:
    """The results of ``function`` of all lanes of each vector, as lanes of vectors, of which the last may have more."""
    lanes, level = vectors[0].type.lanes, list(vectors)
    while lanes > 1:
        level = [of_pairs(function, *(level[i : i + 2] * 2)[:2]) for i in range(0, len(level), 2)]
        lanes //= 2
    return level


def reduce_lanes(how: str, a: Expr) -> Expr:
    """add, max or min over the lanes of ``a``."""
    return op("reduce_" + how, a) if a.type.lanes > 1 else a


# ------------------------------------------------------------------------------------------ statements
@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """``space`` is global (written by the kernel), const, scratch (private memory of the thread that runs the
    iteration, undefined before and after it), shared (memory of a work group), cluster (of several: the first dimension
    says in which block an element lies), stack or register."""

    name: str
    type: Type  # of one element; register tiles hold whole vectors
    shape: tuple[Index, ...]  # only the outermost extent may be symbolic
    space: str = "global"

    @property
    def strides(self) -> tuple[int, ...]:
        out = [1]
        for extent in reversed(self.shape[1:]):
            if extent.terms:
                raise TypeError(f"{self.name}: only the outermost extent may be symbolic")
            out.append(out[-1] * extent.const)
        return tuple(reversed(out)) if self.shape else ()

    def flat(self, idx: tuple[Index, ...]) -> Index:
        return sum((i * s for i, s in zip(idx, self.strides, strict=True)), Index())


@dataclass(frozen=True, slots=True)
class Let:
    ref: Ref
    value: Expr


@dataclass(frozen=True, slots=True)
class Store:
    buffer: Buffer
    index: tuple[Index, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class AsyncCopy(Store):
    """An asynchronous copy from read-only memory to shared memory, of 4, 8 or 16 bytes at once.

    ``value`` is a load, or one under facts and a constant where they fail.  What is copied arrives at a ``Wait`` of the
    same thread for its group, and other threads see it behind the next barrier; until then no thread may touch it.
    """


@dataclass(frozen=True, slots=True)
class Commit:
    """Ends a group of copies of the thread: all since the last one, which may be none."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits until all groups of the thread's copies but the last ``groups`` have arrived."""

    groups: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    buffer: Buffer
    index: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Alloc:
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of the block, or of the whole ``cluster`` of blocks, arrive before any goes on; what they stored
    before is seen by all after it."""

    cluster: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    var: Var
    body: tuple[Stmt, ...]
    kind: str = "serial"


@dataclass(frozen=True, slots=True)
class Bind:
    """Let an integer from data index buffers and bound loops: ``var`` is ``value``, clamped into its range.

    A value out of range is an error of the model or the caller; clamping prevents accesses out of bounds.
    """

    var: Var
    value: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class If:
    facts: tuple[Index, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """Print the body as a separate function.  ``about`` describes it in a comment of the generated code."""

    name: str
    body: tuple[Stmt, ...]
    about: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """Statements that some processors have an instruction, or a piece of assembly, for (``isa.base.Assembly``).

    ``body`` is their meaning: proofs, counts and the interpreter know nothing else, and a dialect without a text for
    ``name`` prints it.  A text is given the addresses of ``operands``, elements of memory and then of registers, and
    ``numbers``.
    """

    name: str
    operands: tuple[tuple[Buffer, tuple[Index, ...]], ...]
    numbers: tuple[int, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class CallSource:
    """Call a C function that is given as text, with whole parameters of the kernel and then numbers.

    For operators of plug-ins: nothing inside the function is proved.
    """

    function: str
    source: str
    buffers: tuple[Buffer, ...]
    numbers: tuple[Const, ...] = ()


Stmt = Let | Store | Commit | Wait | Prefetch | Alloc | Barrier | Loop | Bind | If | Outline | Instruction | CallSource
BLOCKS = Loop | Bind | If | Outline | Instruction
"""Statements with statements inside."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function over buffers.  Parameters in space "const" are read, those in "global" written.

    ``about`` describes the kernel in a comment of the generated code: one sentence in ASCII without a full stop.
    """

    name: str
    params: tuple[Buffer, ...]
    sizes: tuple[Var, ...]
    body: tuple[Stmt, ...]
    about: str = ""
