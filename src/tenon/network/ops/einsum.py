"""Einstein's summation convention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.contraction import Contraction, Factor, contraction
from tenon.machine.kernels.move import AffineIndex, along
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Arg, Case, Input, Operator, Output, Site, Step, register, typed
from tenon.network.ops.window import Ints


@register
@dataclass(frozen=True)
class Einsum(Operator):
    """Products of elements with equal subscripts, summed over every subscript that the result lacks."""

    equation: str = ""
    arity: ClassVar[tuple[int, int]] = (1, 2**31)

    def terms(self, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
        """The subscripts of the operands and of the result; the axes of an ellipsis are numbered from the back.

        Raises ShapeError for an equation that does not fit.
        """
        left, arrow, right = self.equation.replace(" ", "").partition("->")
        operands = left.split(",")
        if len(operands) != len(ranks):
            raise ShapeError(f"Einsum: '{self.equation}' does not have {len(ranks)} operands")
        terms, widest = [], 0
        for text, rank in zip(operands, ranks, strict=True):
            before, dots, after = text.partition("...")
            hidden = rank - len(before) - len(after)
            if hidden < 0 or (hidden and not dots):
                raise ShapeError(f"Einsum: '{text}' does not fit a tensor of rank {rank}")
            widest = max(widest, hidden)
            terms.append([*before, *(f"~{i}" for i in reversed(range(hidden))), *after])
        rest = [f"~{i}" for i in reversed(range(widest))]
        if arrow:
            before, dots, after = right.partition("...")
            return terms, [*before, *(rest if dots else ()), *after]
        letters = [c for term in terms for c in term if not c.startswith("~")]
        return terms, [*rest, *sorted(c for c in set(letters) if letters.count(c) == 1)]

    def extents(self, shapes: Sequence[Ints], terms: Sequence[Sequence[str]]) -> dict[str, int]:
        """The extent of every subscript.  Raises ShapeError where operands disagree."""
        extents: dict[str, int] = {}
        for shape, term in zip(shapes, terms, strict=True):
            for letter, n in zip(term, shape, strict=True):
                if extents.setdefault(letter, n) != n and n != 1:
                    if extents[letter] != 1:
                        raise ShapeError(f"Einsum: '{letter}' of '{self.equation}' is {extents[letter]} and {n}")
                    extents[letter] = n
        return extents

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        terms, result = self.terms([t.rank for t in types])
        extents = self.extents([t.dims for t in types], terms)
        if missing := [letter for letter in result if letter not in extents]:
            raise ShapeError(f"Einsum: no operand of '{self.equation}' has '{missing[0]}'")
        return (TensorType(types[0].dtype, tuple(extents[letter] for letter in result)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        operands = range(len(node.inputs))
        terms, result = self.terms([node.type(i).rank for i in operands])
        extents = {}
        for letter in dict.fromkeys(letter for term in terms for letter in term):
            places = [(i, axis) for i in operands for axis, other in enumerate(terms[i]) if other == letter]
            extents[letter] = node.common_along(places)
            wide = [(i, axis) for i, axis in places if node.type(i).dims[axis] > 1]
            if len({node.type(i).dims[axis] for i, axis in wide}) > 1:
                raise SizeRefusedError("its operands have buffers of different extents")
            for i, axis in wide if letter not in result else ():
                node.with_masked(i, [axis], 0.0)
        return node.same([extents[letter] for letter in result])

    def reference(self, *inputs: Array) -> Array:
        wide = np.float32 if inputs[0].dtype.kind == "V" else inputs[0].dtype
        return np.asarray(np.einsum(self.equation, *(x.astype(wide) for x in inputs))).astype(inputs[0].dtype)

    def lower(self, site: Site) -> list[Step]:
        shapes = [site.input(i).dims for i in range(len(site.inputs))]
        terms, result = self.terms([len(s) for s in shapes])
        extents = self.extents(shapes, terms)
        summed = [letter for letter in extents if letter not in result]
        loop = {letter: i for i, letter in enumerate((*result, *summed))}
        factors = tuple(
            Factor(
                s,
                tuple(along(loop[c]) if n > 1 else AffineIndex() for c, n in zip(t, s, strict=True)),
                site.input(i).dtype,
            )
            for i, (s, t) in enumerate(zip(shapes, terms, strict=True))
        )
        y = site.output
        spec = Contraction(
            "einsum", y.dims, tuple(extents[c] for c in summed), factors, y.dtype, storage_types.computed(y.dtype)
        )
        args: tuple[Arg, ...] = (*map(Input, range(len(shapes))), Output())
        return [Step(contraction(spec, site.machine), args)] if math.prod(y.dims) else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls("ij,jk"), ((3, 4), (4, 18)), label="product")
        yield Case(cls("...ii->...i"), ((2, 3, 3),), label="diagonal")
        yield Case(cls("bij, bjk -> bik"), ((2, 3, 4), (2, 4, 5)), label="batches")
        yield Case(cls("i,j->"), ((3,), (4,)), label="all")
        yield Case(cls("ij,jk"), ((2, 0), (0, 3)), label="nothing")
        yield Case(cls("ij->ji"), ((3, 17),), label="transpose")
