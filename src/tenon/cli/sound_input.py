"""How a sound becomes inputs of a network: its samples, features of them, or what another network makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

import tenon
from tenon.cli.parse import parse_fields
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.sound_features import SoundFeatures
from tenon.runtime.engine.sound import Sound
from tenon.validation import MisfitError, least, reader


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples themselves, in windows of the input's size, each ``context`` samples into the one before."""

    rate: Annotated[int, least(1)] = 16000
    context: Annotated[int, least(0)] = 0


@dataclass(frozen=True, kw_only=True)
class ModelFeatures:
    """A row of features from each window by the network in ``file``; its other inputs carry states between windows."""

    file: str
    rate: Annotated[int, least(1)] = 16000
    window: Annotated[int, least(1)] = 480
    step: Annotated[int, least(1)] = 320

    def rows(self, samples: Array) -> Array:
        """Features [windows, values], in the type of the network's output."""
        with tenon.open(tenon.compile(self.file)) as engine:
            steps = Steps(engine)
            windows = np.lib.stride_tricks.sliding_window_view(samples, self.window)[:: self.step]
            rows = [next(iter(steps.run(window).values())).reshape(-1).copy() for window in windows]
        return np.stack(rows)


Features = Samples | SoundFeatures | ModelFeatures
_KINDS: Mapping[str, Any] = {"samples": Samples, "mfcc": SoundFeatures, "mel": SoundFeatures, "model": ModelFeatures}


def parse_features(text: str) -> Features:
    """``mfcc window=640 step=320``: a kind, and fields of its class.  Raises InputError."""
    fields = parse_fields("--features", text)
    kind = fields["kind"]
    if kind not in _KINDS:
        raise InputError(f"--features {kind}: choose from {', '.join(_KINDS)}")
    if kind not in ("mfcc", "mel"):
        del fields["kind"]
    try:
        features: Features = reader(_KINDS[kind], from_text=True)(fields)
    except MisfitError as misfit:
        where = ".".join(map(str, misfit.where))
        raise InputError(f"--features {kind}: {where + ' ' if where else 'it '}{misfit.why}") from None
    return features


@dataclass(frozen=True)
class Steps:
    """Runs a network again and again: one input is given, the others carry outputs of the step before.

    The network keeps its states itself.  Of other inputs, one carries an output of its shape and type, in the order of
    their names' likeness, and zeros at first.
    """

    engine: tenon.Engine
    states: dict[str, str] = field(init=False)
    values: dict[str, Array] = field(init=False, default_factory=dict)
    input: str = field(init=False)

    def __post_init__(self) -> None:
        self.engine.reset()
        inputs = dict(self.engine.inputs)
        outputs = {tensor.name: tensor for tensor in self.engine.manifest.outputs}
        states = {tensor.name: tensor.state for tensor in self.engine.manifest.inputs if tensor.state}
        kept = set(states)
        for name, array in inputs.items():
            alike = [
                o
                for o, t in outputs.items()
                if t.shape == array.shape and t.dtype == _dtype(self.engine, name) and o not in states.values()
            ]
            if name not in states and alike and len(inputs) > 1:
                states[name] = max(alike, key=lambda other: _likeness(name, other))
        given = [name for name in inputs if name not in states]
        if len(given) != 1 or inputs[given[0]].size == 1:
            listed = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in inputs.items())
            raise InputError(
                f"'{self.engine.name}': which input takes the sound? Fix the others with --value NAME=VALUE; "
                f"it has {listed}"
            )
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "input", given[0])
        self.values.update({name: np.zeros_like(inputs[name]) for name in states if name not in kept})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the input that is given."""
        return tuple(self.engine.inputs[self.input].shape)

    def run(self, values: Array) -> dict[str, Array]:
        """The outputs, without those that are states, for the elements ``values`` of the input."""
        results = self.engine.run({self.input: values.reshape(self.shape), **self.values})
        self.values.update({name: results[self.states[name]].copy() for name in self.values})
        return {name: array for name, array in results.items() if name not in self.states.values()}

    def quantised(self, values: Array) -> Array:
        """Real numbers as elements of the input; whole numbers of its type stay as they are."""
        array = self.engine.inputs[self.input]
        tensor = next(t for t in self.engine.manifest.inputs if t.name == self.input)
        if values.dtype == array.dtype or array.dtype.kind not in "iu":
            return values.astype(array.dtype)
        limits = np.iinfo(array.dtype)
        scale, zero = tensor.scale or 1.0, tensor.zero_point or 0
        return (np.rint(values / scale) + zero).clip(limits.min, limits.max).astype(array.dtype)


def _dtype(engine: tenon.Engine, name: str) -> str:
    return next(tensor.dtype for tensor in engine.manifest.inputs if tensor.name == name)


def _likeness(a: str, b: str) -> int:
    """The length of what two names begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def windows(sound: Sound, features: Features, steps: Steps) -> Iterator[tuple[float, float, Array]]:
    """(start, end in seconds, elements of the input) of each part of a sound that the network takes.

    A sound of another rate than the features have is resampled.
    """
    sound = sound.at(features.rate)
    size = int(np.prod(steps.shape))
    if isinstance(features, Samples):
        yield from _of_samples(sound, features, size)
    else:
        yield from _of_rows(sound, features, size, steps)


def _of_samples(sound: Sound, features: Samples, size: int) -> Iterator[tuple[float, float, Array]]:
    step = size - features.context
    if step < 1:
        raise InputError(f"--features samples: context={features.context} is the whole input of {size} samples")
    padded = np.pad(sound.samples, (features.context, -len(sound.samples) % step))
    for start in range(0, len(padded) - size + 1, step):
        yield start / sound.rate, (start + step) / sound.rate, padded[start : start + size]


def _of_rows(
    sound: Sound, features: SoundFeatures | ModelFeatures, size: int, steps: Steps
) -> Iterator[tuple[float, float, Array]]:
    samples = sound.samples
    if isinstance(features, ModelFeatures):
        samples = np.rint(samples * 32768).clip(-32768, 32767).astype(np.int16)
    if len(samples) < features.window:
        raise InputError(f"the sound has {len(samples)} samples, fewer than a window of {features.window}")
    rows = features.rows(samples)
    count, rest = divmod(size, rows.shape[1])
    if rest:
        raise InputError(f"--features: rows of {rows.shape[1]} values do not fill the input of {list(steps.shape)}")
    needed = features.window + (count - 1) * features.step
    if len(rows) < count:
        rows = features.rows(np.pad(samples, (0, needed - len(samples))))
    for start in _starts(len(rows), count):
        first = start * features.step / sound.rate
        yield first, first + needed / sound.rate, rows[start : start + count]


def _starts(rows: int, count: int) -> list[int]:
    """The first rows of windows of ``count`` rows that overlap by half, and the last one."""
    return sorted({*range(0, rows - count + 1, max(1, count // 2)), rows - count})
