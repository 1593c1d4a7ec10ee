"""Where Keras keeps the weights of a layer: by name in .h5 files, by number in .keras archives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.wire.hdf5 import Hdf5Node
from tenon.network.graph.graph import Array

_ALIASES = {"depthwise_kernel": ("depthwise_kernel", "kernel"), "kernel": ("kernel", "depthwise_kernel")}


class KerasWeights(ABC):
    """Weights of a model or a layer."""

    @abstractmethod
    def enter(self, layers: Sequence[tuple[str, str]]) -> None:
        """Learn the (class, name) of the layers of a model whose weights these are."""

    def inside(self, model: str) -> KerasWeights:
        """The weights of a nested model."""
        return self.of(model)

    @abstractmethod
    def of(self, layer: str) -> KerasWeights:
        """The weights of a layer."""

    @abstractmethod
    def part(self, *names: str) -> KerasWeights:
        """The weights of a layer within a wrapper, by the first of its names that there is."""

    def wrapped(self) -> KerasWeights:
        """The weights of the only layer within a wrapper."""
        return self

    @abstractmethod
    def arrays(self, roles: Sequence[str]) -> list[Array]:
        """One array for each role.  Raises RefusedError when the file has not as many."""

    def quantised(self, kernels: Sequence[str], ranges: Sequence[str]) -> KerasWeights:
        """The weights within a wrapper of quantisation-aware training: of the wrapped layer, of whose roles those in
        ``kernels`` have learnt ranges, and the least and the greatest values by the stems in ``ranges``."""
        return self

    def find(self, name: str) -> Array | None:
        """A weight whose name ends so."""
        return None


class WeightsByName(KerasWeights):
    """Arrays by the paths of the variables' names, in order, as .h5 files have them."""

    def __init__(self, groups: dict[str, dict[str, Hdf5Node]], own: dict[str, Hdf5Node]) -> None:
        self.groups, self.own = groups, own

    def enter(self, layers: Sequence[tuple[str, str]]) -> None:
        """Names are unique without the class."""

    def inside(self, model: str) -> KerasWeights:
        """Keras 3 leaves the names of nested models out of the paths."""
        if model in self.groups or any(model in path.split("/")[:-1] for path in self.own):
            return self.of(model)
        return self

    def of(self, layer: str) -> KerasWeights:
        if layer in self.groups:
            return WeightsByName({}, self.groups[layer])
        inner = {path: node for path, node in self.own.items() if layer in path.split("/")[:-1]}
        return WeightsByName({}, inner)

    def part(self, *names: str) -> KerasWeights:
        """The weights whose path has a component that is one of ``names``, or else begins with one."""
        parts = dict[str, Hdf5Node]()
        for name in names:
            paths = {path: path.split("/")[:-1] for path in self.own}
            parts = parts or {p: self.own[p] for p, components in paths.items() if name in components}
            parts = parts or {
                p: self.own[p] for p, parts_of_path in paths.items() if any(c.startswith(name) for c in parts_of_path)
            }
        return WeightsByName({}, parts)

    def arrays(self, roles: Sequence[str]) -> list[Array]:
        by_role: dict[str, Hdf5Node] = {}
        for path, node in self.own.items():
            by_role.setdefault(_short(path), node)
        nodes: list[Hdf5Node | None] = [
            next((by_role[a] for a in _ALIASES.get(r, (r,)) if a in by_role), None) for r in roles
        ]
        if any(node is None for node in nodes):
            if len(self.own) < len(roles):
                raise RefusedError(f"the file has {len(self.own)} of its {len(roles)} weights ({', '.join(roles)})")
            nodes = list[Hdf5Node | None](self.own.values())[: len(roles)]
        return [node.array for node in nodes if node is not None]

    def find(self, name: str) -> Array | None:
        return next((node.array for path, node in self.own.items() if _short(path).endswith(name)), None)


def _short(path: str) -> str:
    return path.split("/")[-1].partition(":")[0]


def of_h5(root: Hdf5Node) -> KerasWeights:
    """The weights below ``model_weights``."""
    groups = {}
    for layer, group in root.children.items():
        if group.is_array:
            continue
        names = group.attributes.get("weight_names")
        if not isinstance(names, list):
            continue
        nodes = {name: group.find(name) for name in names}
        groups[layer] = {name: node for name, node in nodes.items() if node is not None}
    return WeightsByName(groups, {name: node for group in groups.values() for name, node in group.items()})


class WeightsByNumber(KerasWeights):
    """Arrays numbered within ``vars`` of groups named after layers, as .keras archives have them."""

    def __init__(self, group: Hdf5Node | None) -> None:
        self.group = group
        self.keys: dict[str, str] = {}

    def enter(self, layers: Sequence[tuple[str, str]]) -> None:
        """Groups are named after classes and numbered in the order of the layers, or after the layers."""
        counts: dict[str, int] = {}
        for kind, name in layers:
            stem = _snake(kind)
            count = counts.get(stem, 0)
            counts[stem] = count + 1
            self.keys[name] = f"{stem}_{count}" if count else stem

    def _child(self, *names: str) -> Hdf5Node | None:
        for name in names:
            child = self.group.children.get(name) if self.group is not None else None
            if child is not None:
                return child
        return None

    def of(self, layer: str) -> KerasWeights:
        layers = self._child("layers", "_layer_checkpoint_dependencies")
        if layers is None:
            return WeightsByNumber(None)
        return WeightsByNumber(layers.children.get(self.keys.get(layer, "")) or layers.children.get(layer))

    def part(self, *names: str) -> KerasWeights:
        candidates = [n for name in names for n in (name, f"{name}_layer", f"{name}_dense", f"_{name}_dense")]
        return WeightsByNumber(self._child(*candidates))

    def wrapped(self) -> KerasWeights:
        return WeightsByNumber(self._child("layer") or self.group)

    def arrays(self, roles: Sequence[str]) -> list[Array]:
        variables = self._child("vars")
        if variables is None or not variables.children:
            cell = self._child("cell")
            variables = cell.children.get("vars") if cell is not None else None
        nodes = variables.children if variables is not None else {}
        nodes_by_role = [nodes.get(str(i)) for i in range(len(roles))]
        if any(node is None for node in nodes_by_role):
            raise RefusedError(f"the file has {len(nodes)} of its {len(roles)} weights ({', '.join(roles)})")
        return [node.array for node in nodes_by_role if node is not None]

    def quantised(self, kernels: Sequence[str], ranges: Sequence[str]) -> KerasWeights:
        """Variables of the wrapper come in this order: those that are trained (the kernels last), the counter of
        training steps, the only integer, and pairs of extremes.  The wrapped layer keeps its other weights."""
        variables = self._child("vars")
        nodes = variables.children if variables is not None else {}
        listed = [nodes[str(i)] for i in range(len(nodes)) if str(i) in nodes]
        step = next((i for i, node in enumerate(listed) if node.array.dtype.kind == "i"), len(listed))
        trained, extremes = listed[:step], listed[step + 1 :]
        stems = [f"{stem}_{end}" for stem in (*kernels, *ranges) for end in ("min", "max")]
        if len(extremes) != len(stems) or len(trained) < len(kernels):
            raise RefusedError(
                f"its quantize_config does not say what the {len(extremes)} variables of its ranges belong to: save "
                "the model as .h5, which has their names"
            )
        own = dict(zip(kernels, trained[len(trained) - len(kernels) :], strict=True))
        return _Wrapped(self.wrapped(), own, dict(zip(stems, extremes, strict=True)))


class _Wrapped(KerasWeights):
    """Weights of a layer within a wrapper that has some of its arrays, ``own``, and ``extremes`` of ranges."""

    def __init__(self, rest: KerasWeights, own: Mapping[str, Hdf5Node], extremes: Mapping[str, Hdf5Node]) -> None:
        self.rest, self.own, self.extremes = rest, own, extremes

    def enter(self, layers: Sequence[tuple[str, str]]) -> None:
        self.rest.enter(layers)

    def of(self, layer: str) -> KerasWeights:
        return self.rest.of(layer)

    def part(self, *names: str) -> KerasWeights:
        return self.rest.part(*names)

    def arrays(self, roles: Sequence[str]) -> list[Array]:
        rest = iter(self.rest.arrays([role for role in roles if role not in self.own]))
        return [self.own[role].array if role in self.own else next(rest) for role in roles]

    def find(self, name: str) -> Array | None:
        return next((node.array for key, node in self.extremes.items() if key.endswith(name)), None)


def _snake(name: str) -> str:
    """A class name in snake case, as Keras converts it."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def of_archive(root: Hdf5Node) -> KerasWeights:
    return WeightsByNumber(root)
