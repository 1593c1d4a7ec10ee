"""Whether a loop of a file becomes a node that repeats its body, or copies of the body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenon.formats.decompositions.loops import FEWEST_STEPS, LongLoopError
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.ops.scan import Scan
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
        """The results by the first form that fits: a few copies, a node whose number of iterations is known, up to
        ``UNROLLED`` copies, a node that decides at run time how often it runs, and ``most`` copies."""
        if not self.builder.writer.may_attempt:
            return self.repeated()
        few = self.attempt(lambda: self.unrolled(FEWEST_STEPS - 1))
        if not isinstance(few, str):
            return few[0]
        mark = self.builder.mark()
        looped = self.attempt(self.repeated)
        if isinstance(looped, str):
            return self.many(looped)
        if not any(
            isinstance(node.op, Scan) and node.op.counted for node in self.builder.graph.nodes[mark.writer.nodes :]
        ):
            return looped[0]
        self.builder.restore(mark)
        some = self.attempt(lambda: self.unrolled(UNROLLED))
        return self.repeated() if isinstance(some, str) else some[0]

    def many(self, reason: str) -> T:
        """As many copies as there are iterations.  Raises RefusedError where there are too many."""
        try:
            return self.unrolled(self.most)
        except LongLoopError as error:
            what = f"{error.what}; its body does not fit into a loop: {reason}" if reason else error.what
            raise RefusedError(what, error.remedy) from None

    def attempt(self, form: Callable[[], T]) -> tuple[T] | str:
        """The results of a form; else, with everything taken back that it added, why it does not fit."""
        builder, mark = self.builder, self.builder.mark()
        try:
            with builder.writer.attempt():
                results = form()
            if builder.unchanged_since(mark):
                return (results,)
            problems = builder.writer.problems[mark.writer.problems :]
            reason = problems[0].what if problems else ""
        except self.open as error:
            reason = error.what if isinstance(error, RefusedError) else ""
        builder.restore(mark)
        return reason
