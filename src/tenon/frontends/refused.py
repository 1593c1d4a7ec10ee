"""How a part of an importer says that it cannot import a node; ``net`` and ``onnx.nodes`` make Problems of it."""

from __future__ import annotations


class RefusedError(Exception):
    """This node cannot be imported: ``what`` is wrong, ``remedy`` may help."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class UntypedError(RefusedError):
    """This node cannot be imported before the shapes of its inputs are known."""

    def __init__(self) -> None:
        super().__init__("it needs the shapes of its inputs, which are not known")
