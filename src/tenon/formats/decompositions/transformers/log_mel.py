"""The logarithmic mel spectrogram that Whisper takes, as operators.

Source: A. Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.graph_builder.node_context import NodeContext
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sound_features import mel_bands


@dataclass(frozen=True)
class LogMel:
    """A logarithmic mel spectrogram of sound with ``rate`` samples in a second.

    A row of ``bands`` mel bands from 0 to rate / 2 Hz, as librosa has them, of the power spectrum of ``window`` samples
    under a Hann window, every ``step`` samples; the sound is mirrored by half a window at both ends, and the last row
    is left out.  Decimal logarithms, at least 8 below the largest, plus 4, over 4.
    """

    rate: int = 16000
    window: int = 400
    step: int = 160
    bands: int = 80

    def frames(self, samples: int) -> int:
        """The rows that ``samples`` samples give."""
        return samples // self.step


_FLOOR, _RANGE = 1e-10, 8.0
"""The smallest power of a band, and decades between the largest and the smallest logarithm."""


def log_mel(node: NodeContext, samples: Value, settings: LogMel, filters: Array | None = None) -> Value:
    """f32 [1, bands, frames] of samples f32 [1, count] of -1 to 1; ``filters`` [bands, bins] replace the mel bands."""
    (_, count), half = node.builder.dims(samples), settings.window // 2
    x = node.add("Pad", samples, node.ints(0, half, 0, half), mode="reflect")
    x = node.slice(x, [0], [(settings.frames(count) - 1) * settings.step + settings.window], [1])
    x = node.add("Unsqueeze", x, node.ints(1))
    spectrum = node.add("Conv", x, _transform(settings.window), strides=(settings.step,))
    real, imaginary = node.equal_parts(node.square(spectrum), 1, 2)
    if filters is None:
        filters = mel_bands(settings.bands, settings.window, settings.rate, 0, settings.rate / 2, "slaney").T
    bands = node.add("MatMul", filters.astype(np.float32), node.add("Add", real, imaginary))
    decades = node.add("Mul", node.add("Log", node.add("Max", bands, np.array(_FLOOR, np.float32))), 1 / np.log(10))
    top = node.add("ReduceMax", decades, node.ints(0, 1, 2), keepdims=1)
    y = node.add("Max", decades, node.add("Sub", top, _RANGE))
    return node.add("Mul", node.add("Add", y, 4.0), 0.25)


def _transform(window: int) -> Array:
    """Filters f32 [2 * bins, 1, window]: real and imaginary parts of the Fourier transform under a Hann window."""
    n, bins = np.arange(window), window // 2 + 1
    roots = np.exp(-2j * np.pi / window * (np.outer(np.arange(bins), n) % window))
    filters = roots * (0.5 - 0.5 * np.cos(2 * np.pi * n / window))
    return np.concatenate([filters.real, filters.imag])[:, None].astype(np.float32)
