"""The interface of heads: what decodes the outputs of one class of networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.runtime.engine.image import InputImage


@dataclass(frozen=True)
class Run:
    """One run of a network: its inputs and outputs as real numbers, and the image among the inputs, if there is one.

    ``threshold`` is the smallest score that is reported, ``overlap`` the intersection over union above which the worse
    of two boxes is dropped; None for a head's own defaults.  ``match`` are the outputs for an image to compare with.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    image: InputImage | None = None
    labels: Sequence[str] = ()
    threshold: float | None = None
    overlap: float | None = None
    top: int | None = None
    match: Mapping[str, Array] | None = None

    def label(self, number: int) -> str:
        """The name of a class, or its number."""
        return self.labels[number] if 0 <= number < len(self.labels) else str(number)


@dataclass(frozen=True, kw_only=True)
class Head(ABC):
    """Decodes outputs.  The fields are what ``--head KIND FIELD=VALUE ...`` sets.

    ``outputs`` are the names of the outputs that are decoded, in the order that the kind states; a head that
    ``recognise`` returns has them filled in.
    """

    kind: ClassVar[str]
    about: ClassVar[str]
    count: ClassVar[int] = 1
    """The number of outputs that are decoded."""

    outputs: tuple[str, ...] = ()

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        """The head for a network whose inputs and outputs have the shapes (and names) of this kind, else None.
        ``labels`` is the number of class names that are known."""
        return None

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        """Outputs that can be decoded, best first, where none is named; the first ``count`` are taken."""
        return outputs

    @abstractmethod
    def answer(self, run: Run) -> Answer:
        """The answer in the outputs ``self.outputs``.  Raises InputError for outputs of other shapes."""

    def scores(self, run: Run) -> Array:
        """The scores [classes] of a part of a sound; one number for networks that only tell whether."""
        return run.outputs[self.outputs[0]].reshape(-1)

    def named(self, outputs: Sequence[BundleTensor]) -> tuple[str, ...]:
        """The names of the outputs to decode.  Raises InputError for an unknown name and for too few outputs."""
        known = [tensor.name for tensor in outputs]
        if unknown := [name for name in self.outputs if name not in known]:
            raise InputError(
                f"--head {self.kind}: no output is called '{unknown[0]}'; the model has {', '.join(known)}"
            )
        names = self.outputs or tuple(tensor.name for tensor in self.fitting(outputs))[: self.count]
        if len(names) < self.count:
            listed = ", ".join(f"{t.name} {t.type}" for t in outputs)
            raise InputError(f"--head {self.kind}: {self.about}; the model has {listed}")
        return names


def real_values(arrays: Mapping[str, Array], tensors: Sequence[BundleTensor]) -> dict[str, Array]:
    """Quantised tensors as the real numbers that they stand for, f64; others as they are."""
    known = {tensor.name: tensor for tensor in tensors}
    return {name: _real(array, known[name]) if name in known else array for name, array in arrays.items()}


def _real(array: Array, tensor: BundleTensor) -> Array:
    if tensor.scale is None or array.dtype.kind not in "iu":
        return array
    return np.asarray(tensor.scale * (array.astype(np.float64) - (tensor.zero_point or 0)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), f64, without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64))))


def softmax(x: Array) -> Array:
    """Over the last axis, f64."""
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True).astype(np.float64))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
