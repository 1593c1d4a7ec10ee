"""Stages of a compilation, shown to those who ask, ``tenon compile --dump`` for example."""

from __future__ import annotations

from tenon.machine.plan.lowering_context import Setting
from tenon.machine.plan.program import Program
from tenon.network.graph.graph import Graph


class Stages:
    """Called between the stages of a compilation, for each binding of the inputs in turn; these methods do nothing.

    Graphs go on being changed after a call.
    """

    def imported(self, name: str, graph: Graph) -> None:
        """The graph before anything is optimised, of the binding whose entry point has this name."""

    def log(self, line: str) -> None:
        """A line of a pass's log: a rule that declines, and why."""

    def passed(self, name: str, graph: Graph, changes: int) -> None:
        """The graph after the pass of that name, which made so many changes."""

    def planned(self, program: Program, setting: Setting, graph: Graph | None) -> None:
        """The program, and the graph that it was lowered from: with layouts, in the order of execution.  The graph is
        None where the program was searched for within a budget of RAM."""


UNSEEN = Stages()
"""Shows nothing."""
