"""An operator of a Caffe2 net as the functions that import it see it."""

from __future__ import annotations

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.shared.named_arguments import NamedArgumentNode
from tenon.formats.wire.protobuf import Message


class Caffe2Node(NamedArgumentNode):
    """The operator being imported.  ``blind`` says that weights are in no file, so that shapes are not known."""

    def __init__(self, builder: GraphBuilder, blind: bool) -> None:
        super().__init__(builder)
        self.blind = blind

    def begin(self, op: Message) -> bool:
        """Whether the operator can be made: the types of its inputs are known."""
        self.read(op)
        if self.text("order", "NCHW") not in ("NCHW", "NHWC"):
            raise RefusedError(f"the order {self.text('order')} is not supported")
        return self.blind or self.inputs_known
