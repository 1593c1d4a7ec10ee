"""Whether a loop of a file becomes a node that repeats its body, or copies of the body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenon.formats.decompositions.loops import FEWEST_STEPS, LongLoopError, is_simple
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.ops.unroll import UNROLLED

T = TypeVar("T")


@dataclass(frozen=True)
class LoopForms(Generic[T]):
    """The ways to import a loop: ``unrolled`` gives its results by copies of its body, of at most so many iterations,
    and raises LongLoopError beyond; ``repeated`` by one node.  ``open`` are the exceptions of a condition that is not
    known, and of a body that does not fit into a node."""

    builder: GraphBuilder
    unrolled: Callable[[int], T]
    repeated: Callable[[], T]
    most: int
    open: tuple[type[Exception], ...] = (RefusedError,)

    def run(self) -> T:
        """The results by the first form that fits: a few copies, a node whose number of iterations and shapes are
        known, up to ``UNROLLED`` copies, a node that decides these at run time, and ``most`` copies."""
        if not self.builder.writer.may_attempt:
            return self.repeated()
        few = self.attempt(lambda: self.unrolled(FEWEST_STEPS - 1))
        if not isinstance(few, RefusedError):
            return few[0]
        mark = self.builder.mark()
        looped = self.attempt(self.repeated)
        if isinstance(looped, RefusedError):
            return self.many(looped)
        if is_simple(self.builder.writer, mark.writer.nodes):
            return looped[0]
        self.builder.restore(mark)
        some = self.attempt(lambda: self.unrolled(UNROLLED))
        return self.repeated() if isinstance(some, RefusedError) else some[0]

    def many(self, reason: RefusedError) -> T:
        """As many copies as there are iterations.  Raises RefusedError where there are too many."""
        try:
            return self.unrolled(self.most)
        except LongLoopError as error:
            what = f"{error.what}; its body does not fit into a loop: {reason.what}" if reason.what else error.what
            raise RefusedError(what, reason.remedy or error.remedy) from None

    def attempt(self, form: Callable[[], T]) -> tuple[T] | RefusedError:
        """The results of a form; else, with everything taken back that it added, why it does not fit."""
        builder, mark = self.builder, self.builder.mark()
        try:
            with builder.writer.attempt():
                results = form()
            if builder.unchanged_since(mark):
                return (results,)
            problems = builder.writer.problems[mark.writer.problems :]
            reason = RefusedError(problems[0].what, problems[0].remedy) if problems else RefusedError("")
        except self.open as error:
            reason = error if isinstance(error, RefusedError) else RefusedError("")
        builder.restore(mark)
        return reason
