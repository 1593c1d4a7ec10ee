"""``tenon compile --dump DIR``: every stage of a compilation as a numbered text file."""

from __future__ import annotations

import re
from pathlib import Path

import tenon
from tenon.atomic_write import write
from tenon.errors import InputError
from tenon.machine.codegen.ir_text import BACKEND as IR_TEXT
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.plan.program import Program
from tenon.machine.plan.stages import Stages
from tenon.machine.plan.text import show_algorithms, show_program
from tenon.network.graph.graph import Graph
from tenon.network.graph.text import show

OPTION = "--dump"


class Dump(Stages):
    """Writes the stages of one compilation to ``folder``, each as soon as it is reached, so that those before an error
    are there.  Raises InputError for a folder with files in it, whose numbers would mix with these."""

    def __init__(self, folder: Path) -> None:
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{OPTION} {folder}: the folder is not empty: name a new one")
        self.folder = folder
        self._files, self._bindings, self._prefix = 0, 0, ""
        self._declined: dict[str, None] = {}
        self._rules: list[str] = []

    def __enter__(self) -> None:
        """The rules that declined are written at the end, also after an error."""

    def __exit__(self, *error: object) -> None:
        self._write_rules()

    def imported(self, name: str, graph: Graph) -> None:
        self._write_rules()
        self._bindings += 1
        self._prefix = f"{name}-" if self._bindings > 1 else ""
        self._write("import.txt", show(graph, "none"))

    def log(self, line: str) -> None:
        self._declined[line] = None

    def passed(self, name: str, graph: Graph, changes: int) -> None:
        declined = [line for line in self._declined if not line.startswith(f"{name}: ")]
        if changes:
            self._write(f"{re.sub('[^a-z0-9]+', '-', name.lower())}.txt", show(graph, "none"))
        if changes or declined:
            self._rules += [f"{name}: {changes} change{'' if changes == 1 else 's'}", *(f"  {d}" for d in declined)]
        self._declined.clear()

    def planned(self, program: Program, setting: Setting, graph: Graph | None) -> None:
        self._write_rules()
        text = show_program(program)
        if graph is not None:
            self._write("layouts.txt", show(graph, "none"))
            text += show_algorithms(graph, setting)
        self._write("plan.txt", text)

    def _write_rules(self) -> None:
        """Write the passes that ran, and the rules that declined, since this was called last."""
        if self._rules:
            self._write("rules.txt", "\n".join([*self._rules, ""]))
        self._rules.clear()

    def bundle(self, bundle: tenon.Bundle) -> None:
        """Write the kernels and the generated code, of all bindings together."""
        self._prefix = ""
        unit = IR_TEXT.program([bundle.program, *bundle.more], f"{bundle.name}.h")
        self._write("kernels.ir", unit.files[0].text)
        self._write(f"{bundle.name}.h", bundle.header)
        for file in bundle.unit.files:
            self._write(file.name, file.text)

    def _write(self, name: str, text: str) -> None:
        self._files += 1
        write(self.folder / f"{self._files:03}-{self._prefix}{name}", text, OPTION)
