"""Features of sound that networks take: mel-frequency cepstral coefficients and logarithms of mel bands.

Sources: TensorFlow's operators AudioSpectrogram and Mfcc and its module tf.signal, of which these are the definitions;
Davis and Mermelstein, Comparison of Parametric Representations for Monosyllabic Word Recognition (1980).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.validation import MisfitError, least, reader


@dataclass(frozen=True, kw_only=True)
class SoundFeatures:
    """How a row of features is computed from each window of ``window`` samples, every ``step`` samples.

    Hann window, discrete Fourier transform of the next power of two, magnitudes to the power ``power``, ``bands``
    triangular mel bands from ``low`` to ``high`` Hz, natural logarithm of (sum + ``offset``).  ``kind="mfcc"``: the
    first ``count`` values of their cosine transform; ``"mel"``: the logarithms themselves.  ``rate`` is the number of
    samples in a second that the network has been trained on; ``peak``: the sound is scaled to a maximum of 1.
    ``mel="slaney"``: the bands of librosa, of equal area; ``centre``: half a window of silence before and after the
    sound.  ``mean`` and ``scale`` are applied last: (x - mean) * scale.
    """

    kind: Literal["mfcc", "mel"] = "mfcc"
    mel: Literal["htk", "slaney"] = "htk"
    centre: bool = False
    rate: Annotated[int, least(1)] = 16000
    window: Annotated[int, least(2)] = 480
    step: Annotated[int, least(1)] = 320
    bands: Annotated[int, least(1)] = 40
    low: float = 20.0
    high: float = 4000.0
    count: Annotated[int, least(1)] = 10
    power: float = 1.0
    offset: float = 1e-12
    mean: float = 0.0
    scale: float = 1.0
    peak: bool = False

    def rows(self, samples: Array) -> Array:
        """Features [windows, count or bands] of sound of -1 to 1, f64.  Raises InputError if it is shorter than a
        window."""
        if len(samples) < self.window:
            raise InputError(f"the sound has {len(samples)} samples, fewer than a window of {self.window}")
        if self.peak:
            samples = samples / max(1e-9, samples.max())
        if self.centre:
            samples = np.pad(samples, self.window // 2)
        frames = np.lib.stride_tricks.sliding_window_view(samples, self.window)[:: self.step]
        spectrum = np.abs(np.fft.rfft(frames * self.hann(), self.length)) ** self.power
        logarithms = np.log(spectrum @ self.weights() + self.offset)
        rows = logarithms if self.kind == "mel" else logarithms @ cosines(self.bands)[:, : self.count]
        return np.asarray((rows - self.mean) * self.scale)

    @property
    def length(self) -> int:
        """Points of the Fourier transform."""
        return 1 << (self.window - 1).bit_length()

    @property
    def width(self) -> int:
        """Features in a row."""
        return min(self.count, self.bands) if self.kind == "mfcc" else self.bands

    def samples(self, rows: int) -> int:
        """Samples from which ``rows`` rows are computed, in whole steps."""
        return max(0, self.window - self.step) + rows * self.step

    def weights(self) -> Array:
        """The share that each band takes of each magnitude, [length / 2 + 1, bands]."""
        return mel_bands(self.bands, self.length, self.rate, self.low, self.high, self.mel)

    def hann(self) -> Array:
        """The window, [window]."""
        return np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window))


def read_features(fields: Mapping[str, Any]) -> SoundFeatures:
    """The features with these fields, whose values may be text.  Raises InputError for unknown and invalid ones."""
    try:
        features: SoundFeatures = reader(SoundFeatures, from_text=True)(dict(fields))
    except MisfitError as misfit:
        where = ".".join(map(str, misfit.where))
        raise InputError(
            f"features {fields.get('kind', 'mfcc')}: {where + ' ' if where else 'it '}{misfit.why}"
        ) from None
    return features


def mel_bands(bands: int, length: int, rate: int, low: float, high: float, mel: str = "htk") -> Array:
    """Triangular weights [length / 2 + 1, bands], of equal width in mel, without the constant part of the spectrum.

    "htk": triangles over mel = 1127 ln(1 + f / 700).  "slaney": triangles over frequencies, of equal area; mel is
    proportional to f up to 1000 Hz and to its logarithm above.
    """
    frequencies = np.arange(length // 2 + 1)[:, None] * rate / length
    if mel == "htk":
        place, edges = _htk(frequencies), _even(_htk(np.array([low, high])), bands + 2)
    else:
        place, edges = frequencies, _slaney_frequency(_even(_slaney(np.array([low, high])), bands + 2))
    rising, falling = (place - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - place) / (edges[2:] - edges[1:-1])
    weights = np.minimum(rising, falling).clip(0)
    weights[0] = 0
    return np.asarray(weights if mel == "htk" else weights * 2 / (edges[2:] - edges[:-2]))


def _even(ends: Array, count: int) -> Array:
    return np.linspace(float(ends[0]), float(ends[1]), count)


def _htk(frequencies: Array) -> Array:
    return np.asarray(1127 * np.log1p(frequencies / 700))


_KNEE, _BELOW, _ABOVE = 1000.0, 200 / 3, np.log(6.4) / 27
"""Slaney's scale: the frequency in Hz up to which it is linear, Hz in a mel below it, and the logarithm of the ratio
of frequencies a mel apart above it."""


def _slaney(frequencies: Array) -> Array:
    above = np.log(np.maximum(frequencies, _KNEE) / _KNEE) / _ABOVE
    return np.asarray(np.minimum(frequencies, _KNEE) / _BELOW + above)


def _slaney_frequency(mel: Array) -> Array:
    knee = _KNEE / _BELOW
    return np.asarray(np.minimum(mel, knee) * _BELOW * np.exp(np.maximum(mel - knee, 0) * _ABOVE))


def cosines(bands: int) -> Array:
    """The cosine transform of type 2, [bands, bands], as TensorFlow scales it."""
    k, n = np.arange(bands), np.arange(bands)[:, None] + 0.5
    return np.asarray(np.sqrt(2 / bands) * np.cos(np.pi / bands * n * k))
