"""A node of a TensorFlow graph as the functions that import it see it, and the loop over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.builder import required_input
from tenon.formats.graph_builder.errors import RefusedError, no_such_tensors, unknown
from tenon.formats.graph_builder.node_context import AttributeName
from tenon.formats.importers.shared.tensorflow_family import TensorflowFamilyNode
from tenon.formats.importers.tensorflow.output_positions import by_position
from tenon.formats.importers.tensorflow.schema import SCHEMA, array, element_type, shape_of
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.bind import ANY_RANK
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.writer import is_known

MAX_STEPS = 1024
"""Steps that a loop may be unrolled to."""

MAX_NODES = 200_000
"""Nodes that may be evaluated in all, with loops unrolled."""

MAX_CALL_DEPTH = 32

SOURCES = frozenset(
    {
        "FIFOQueueV2",
        "IteratorGetNext",
        "Mfcc",
        "OneShotIterator",
        "QueueDequeueManyV2",
        "QueueDequeueUpToV2",
        "QueueDequeueV2",
        "RandomShuffleQueueV2",
    }
)
"""Where data comes into the graph: queues, data sets, and the audio features, which are computed outside."""

SWITCHES = frozenset({"Switch", "RefSwitch"})

EXITS = frozenset({"Exit", "RefExit"})
MERGES = frozenset({"Merge", "RefMerge"})
ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})

_BARRIERS = frozenset({"Merge", "RefMerge", "Enter", "RefEnter", "NextIteration", "RefNextIteration"})
"""Nodes at which the search for a controlling Switch ends: behind these it is the branches or the loop that decide."""

_SILENT = frozenset({"Const", "NoOp", "Assert", "Placeholder", "PlaceholderWithDefault", "SaveV2", "RestoreV2"})
"""Operators that are not outputs of the model even without readers."""


@dataclass(frozen=True)
class TensorArray:
    """A tensor array or list while importing: tensors by index, or all of them as one, ``whole``, along axis 0."""

    size: int
    values: dict[int, Value] = field(default_factory=dict)
    whole: Value | None = None


@dataclass(frozen=True)
class TensorflowVariable:
    """A variable's name."""

    name: str


class Dead:
    """The output of the branch of a Switch that is not taken."""


DEAD = Dead()

NodeResult = Value | TensorArray | TensorflowVariable | Dead


@dataclass
class TensorflowScope:
    """Results by reference ("node", "node:1"); ``nodes`` are those that may be asked for.  ``merges`` is the state of a
    loop being imported, ``calls`` counts how deep functions are nested, ``loops`` are the last states of frames.
    ``taken`` says, in a branch under a condition that is computed at run time, whether that holds there."""

    nodes: dict[str, Message]
    values: dict[str, NodeResult] = field(default_factory=dict)
    outer: TensorflowScope | None = None
    merges: dict[str, NodeResult] = field(default_factory=dict)
    calls: int = 0
    loops: dict[str, Sequence[NodeResult]] = field(default_factory=dict)
    taken: dict[str, bool] = field(default_factory=dict)

    @property
    def main(self) -> bool:
        return self.outer is None and not self.calls and not self.taken


def split_reference(reference: str) -> tuple[str, int]:
    """(node, output) of "node" or "node:1"."""
    name, _, number = reference.partition(":")
    return name, int(number) if number.isdecimal() else 0


def canonical(reference: str) -> str:
    name, output = split_reference(reference)
    return f"{name}:{output}" if output else name


def data_inputs(node: Message) -> list[str]:
    return [canonical(name) for name in node.input if not name.startswith("^")]


def condition_of(switch: Message, nodes: Mapping[str, Message]) -> str:
    """The condition of a Switch, behind the Identity nodes by which a conditional reads it."""
    reference = data_inputs(switch)[1]
    for _ in nodes:
        node = nodes.get(split_reference(reference)[0])
        if node is None or node.op != "Identity" or not data_inputs(node):
            break
        reference = data_inputs(node)[0]
    return reference


def control_inputs(node: Message) -> list[str]:
    return [name[1:] for name in node.input if name.startswith("^")]


def guards(node: Message, nodes: Mapping[str, Message]) -> list[str]:
    """The outputs of Switches that a node waits for without reading them: it runs if they are in the branch taken.

    A constant in a branch has no operands, and belongs to its branch by a control input alone.
    """
    outputs: list[str] = []
    todo, seen = control_inputs(node), set[str]()
    while todo:
        unary = nodes.get(name := todo.pop())
        if unary is None or name in seen or unary.op in _BARRIERS or unary.op in EXITS:
            continue
        seen.add(name)
        for reference in data_inputs(unary):
            maker = split_reference(reference)[0]
            if maker in nodes and nodes[maker].op in SWITCHES:
                outputs.append(reference)
            else:
                todo.append(maker)
        todo += control_inputs(unary)
    return list(dict.fromkeys(outputs))


@dataclass(frozen=True)
class TensorflowOperators:
    """The tables of nodes: operators, control flow, which Enters an Exit of a loop needs, and which condition decides
    about a Merge."""

    operators: Mapping[str, Callable[[TensorflowNode], Value | Sequence[Value]]]
    control: Mapping[str, Callable[[TensorflowNode], Sequence[NodeResult]]]
    entries: Callable[[Message, TensorflowScope], list[Message]]
    predicate: Callable[[Message, TensorflowScope], tuple[str, int] | None]


class TensorflowImporter:
    """The import of one graph."""

    def __init__(
        self, builder: ChannelsLast, graph: Message, variables: dict[str, Array], vocabulary: TensorflowOperators
    ) -> None:
        self.builder = builder
        self.file = builder.file
        self.variables = variables
        self.vocabulary = vocabulary
        self.builder.remember()
        self.functions = {f.signature.name: f for f in graph.library.function}
        self.bodies: dict[str, tuple[dict[str, Message], list[str]]] = {}
        self.left = MAX_NODES
        self.conditional = any(node.op in SWITCHES for node in graph.node)
        self.predicates: dict[tuple[int, str, bool], tuple[str, int] | None] = {}
        self.refused: dict[str, str] = {}  # loops and conditions that were reported, and the nodes they are reported at
        self.top = TensorflowScope({node.name: node for node in graph.node})
        if not self.top.nodes or "" in self.top.nodes:
            raise FormatError(
                f"{self.file.name}: the graph has no nodes, or one without a name; the file is truncated or damaged"
            )

    def body(self, name: str) -> tuple[dict[str, Message], list[str]]:
        """The nodes of a function and where its results come from, referred to by position.  Raises RefusedError."""
        if name not in self.functions:
            raise RefusedError(f"calls the function '{name}', which does not exist")
        if name not in self.bodies:
            self.bodies[name] = by_position(self.functions[name], self.functions)
        return self.bodies[name]

    def run(self, inputs: Sequence[str], signature: Mapping[str, str]) -> Graph:
        """The graph from the inputs that the user chose to the outputs that the user or the file wants.

        ``signature`` are the file's outputs by name.  Raises ModelError listing every problem.
        """
        builder = self.builder
        chosen = [n for n in builder.cut_outputs if n not in signature]
        unknown = [n for n in (*inputs, *chosen) if split_reference(n)[0] not in self.top.nodes]
        if unknown:
            raise no_such_tensors(self.file.name, unknown, self.top.nodes)
        for name in inputs:
            if name in builder.shapes and not isinstance(builder.shapes[name], int):
                with builder.layer(name, "input", name):
                    builder[name] = Value(name)
                    self.top.values[name] = builder[name]
        names = builder.cut_outputs or list(signature) or self.ends()
        wanted = {name: canonical(signature.get(name, name)) for name in names}
        self.demand(list(wanted.values()), self.top)
        other = next((name for name in wanted.values() if not isinstance(self.top.values.get(name), Value)), None)
        if other is not None:
            raise FormatError(f"{self.file.name}: the output '{other}' is not a tensor")
        self.rename({name: reference for name, reference in wanted.items() if name != reference})
        return builder.finish(names)

    def rename(self, references: Mapping[str, str]) -> None:
        """Make tensors known by the names of the outputs, too."""
        builder = self.builder
        with builder.layer("outputs", "signature", *references):
            values = {name: builder[reference] for name, reference in references.items() if reference in builder}
            for name, value in values.items():
                builder[name] = value

    def ends(self) -> list[str]:
        """The nodes that nothing reads."""
        read = {split_reference(name)[0] for node in self.top.nodes.values() for name in data_inputs(node)}
        return [n.name for n in self.top.nodes.values() if n.name not in read and n.op not in _SILENT]

    def demand(self, references: Sequence[str], scope: TensorflowScope) -> None:
        """Evaluate the demanded results, their dependencies first."""
        todo, open_ = [canonical(r) for r in reversed(references)], set[tuple[str, bool]]()
        while todo:
            reference = todo[-1]
            if reference in scope.values:
                todo.pop()
                continue
            name = split_reference(reference)[0]
            node = scope.nodes.get(name)
            if node is None:
                raise FormatError(f"{self.file.name}: '{name}' is read and does not exist; the file is damaged")
            needs = [r for r in self.needs(node, scope) if r not in scope.values]
            turn = name, self.is_decided(node, scope)
            if needs and turn in open_:
                raise FormatError(f"{self.file.name}: '{name}' needs itself; the file is damaged")
            open_.add(turn)
            if needs:
                todo += reversed(needs)
                continue
            self.evaluate(node, scope)
            if reference not in scope.values:
                self.report_missing(node, reference, scope)
            open_.discard(turn)

    def report_missing(self, node: Message, reference: str, scope: TensorflowScope) -> None:
        """Report a missing output, unless the node failed and is reported."""
        first = scope.values.get(node.name)
        if isinstance(first, Dead):
            scope.values[reference] = first
            return
        if not isinstance(first, Value) or first.typed:
            origin = Origin(self.file.name, node.name, node.op)
            self.builder.writer.report(origin, f"'{reference}' is read, and it has no such output")
        scope.values[reference] = Value(reference)

    def needs(self, node: Message, scope: TensorflowScope) -> list[str]:
        """The results that a node must have before it can be evaluated."""
        if (node.op == "Merge" and node.name in scope.merges) or node.op in SOURCES:
            return []
        if node.op in EXITS:
            return [name for enter in self.vocabulary.entries(node, scope) for name in data_inputs(enter)[:1]]
        if scope.outer is not None and node.op in ("Enter", "RefEnter"):
            return []
        if node.op in MERGES and (decision := self.predicate(node, scope)) and self.may_be_open(decision[0], scope):
            return [decision[0]]
        waits = guards(node, scope.nodes) if self.conditional else []
        return [*data_inputs(node), *waits]

    def predicate(self, merge: Message, scope: TensorflowScope) -> tuple[str, int] | None:
        """``vocabulary.predicate``, looked up once."""
        key = id(scope.nodes), merge.name, merge.name in scope.merges
        if key not in self.predicates:
            self.predicates[key] = self.vocabulary.predicate(merge, scope)
        return self.predicates[key]

    def is_decided(self, node: Message, scope: TensorflowScope) -> bool:
        """Whether the condition is computed that says which operands a Merge needs."""
        decision = self.predicate(node, scope) if node.op in MERGES else None
        return decision is not None and decision[0] in scope.values

    def may_be_open(self, predicate: str, scope: TensorflowScope) -> bool:
        """Whether a condition is not computed yet, or is not known when compiling."""
        value = scope.values.get(predicate)
        open = value is None or (isinstance(value, Value) and value.typed and value.data is None)
        return open and predicate not in scope.taken

    def evaluate(self, node: Message, scope: TensorflowScope) -> None:
        """Add a node's results to the scope; errors are recorded by the builder."""
        tops = [node.name] if scope.main else []
        outputs: Sequence[NodeResult] = []
        self.left -= 1
        if self.left < 0:
            problem = Problem(f"{node.name} ({node.op})", f"loops and functions come to more than {MAX_NODES} nodes")
            raise UnsupportedError(self.file.name, [problem])
        with self.builder.layer(node.name, node.op, *tops):
            outputs = self.results(node, scope)
            if scope.main:
                outputs = [self.named(canonical(f"{node.name}:{i}"), value) for i, value in enumerate(outputs)]
        if not outputs:
            outputs = [self.builder.scope.get(node.name, Value(node.name)) if scope.main else Value(node.name)]
        for i, value in enumerate(outputs):
            scope.values[canonical(f"{node.name}:{i}")] = value

    def is_dead(self, node: TensorflowNode) -> bool:
        """Whether a node is in a branch that is not taken: nodes that join branches are not, as one branch is taken."""
        if node.node.op in _BARRIERS or not self.conditional:
            return False
        return any(isinstance(node.scope.values.get(r), Dead) for r in self.needs(node.node, node.scope))

    def named(self, reference: str, value: NodeResult) -> NodeResult:
        if isinstance(value, Value):
            self.builder[reference] = value
            return self.builder.scope[reference]
        return value

    def results(self, node: Message, scope: TensorflowScope) -> Sequence[NodeResult]:
        layer = TensorflowNode(self, node, scope)
        if self.is_dead(layer):
            return [DEAD] * 8
        control = self.vocabulary.control.get(node.op)
        if control is not None:
            return control(layer)
        import_node = self.vocabulary.operators.get(node.op)
        values = [] if node.op in SOURCES else [layer.made(k) for k in range(layer.count)]
        if import_node is None:
            raise unknown(node.op, self.vocabulary.operators)
        if any(isinstance(v, Value) and not is_known(v) for v in values):
            return []  # the layer that did not make it has been reported
        result = import_node(layer)
        return [result] if isinstance(result, Value) else list(result)

    def input(self, name: str, dtype: DType, shape: tuple[int, ...] | None) -> Value:
        """A new input of the graph; an unknown batch is one.  Raises ShapeError while other extents are unknown."""
        if name in self.builder.scope and self.builder.scope[name] in self.builder.graph.inputs:
            return self.builder.scope[name]
        dims: tuple[int | str, ...] = (ANY_RANK,)
        if shape is not None:
            dims = tuple(n if n >= 0 else 1 if i == 0 else f"{name}_dim_{i}" for i, n in enumerate(shape))
        return required_input(self.builder, name, TensorType(dtype, dims))


class TensorflowNode(TensorflowFamilyNode):
    """A node of the file as the functions of ``tensorflow.ops`` see it."""

    def __init__(self, importer: TensorflowImporter, node: Message, scope: TensorflowScope) -> None:
        super().__init__(importer.builder)
        self.importer = importer
        self.node = node
        self.scope = scope
        self.references = data_inputs(node)

    @property
    def count(self) -> int:
        return len(self.references)

    def message(self, name: AttributeName) -> Message:
        """An attribute as it stands in the file; an empty one where it does not."""
        message: Message = self.node.attr.get(name) or SCHEMA.new("Attribute")
        return message

    def integers(self, name: AttributeName, default: Sequence[int] = ()) -> list[int]:
        return list(self.message(name).list.i)

    def text(self, name: AttributeName, default: str = "") -> str:
        return bytes(self.message(name).s).decode("utf-8", "replace") or default

    def flag(self, name: AttributeName, default: bool = False) -> bool:
        return bool(self.message(name).b)

    def number(self, name: AttributeName, default: float = 0.0) -> float:
        return float(self.message(name).f) if name in self.node.attr else default

    def integer(self, name: AttributeName, default: int = 0) -> int:
        return int(self.message(name).i) if name in self.node.attr else default

    def dtype(self, name: str) -> DType:
        return element_type(self.message(name).type)

    def made(self, k: int = 0) -> NodeResult:
        """Operand ``k``, whatever it is."""
        if k >= self.count:
            raise RefusedError(f"input {k} is missing")
        reference = self.references[k]
        self.note(reference)
        return self.scope.values[reference]

    def note(self, reference: str) -> None:
        """Record that this node needs a result, or its placeholder where its node failed."""
        name = reference if reference in self.builder else split_reference(reference)[0]
        if self.scope.main and name in self.builder:
            self.builder[name]

    def input(self, i: int = 0) -> Value:
        """Operand ``i``, which must be a tensor."""
        value = self.made(i)
        if not isinstance(value, Value):
            raise RefusedError(f"input {i} is not a tensor")
        return value

    def items(self, k: int) -> TensorArray:
        result = self.made(k)
        if not isinstance(result, TensorArray):
            raise RefusedError(f"input {k} is not a tensor array")
        return result

    def value_constant(self) -> Value:
        """The tensor of a Const."""
        return self.builder.constant(array(self.message("value").tensor), "value")

    def declared(self, name: str) -> tuple[int, ...] | None:
        """The shape that an attribute declares; None if it does not."""
        return shape_of(self.message(name).shape) if name in self.node.attr else None

    def graph_input(self, reference: str, dtype: DType, shape: tuple[int, ...] | None) -> Value:
        return self.importer.input(reference, dtype, shape)

    def maker(self, k: int) -> TensorflowNode | None:
        """The node that makes operand ``k``."""
        node = self.scope.nodes.get(split_reference(self.references[k])[0]) if k < self.count else None
        return None if node is None else TensorflowNode(self.importer, node, self.scope)
