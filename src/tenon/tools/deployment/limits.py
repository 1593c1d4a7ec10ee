"""By how much a compiled network may differ from its reference, for each kind of arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ResourceLimits:
    """The least cosine similarity, the least SQNR in dB, and the largest error relative to the largest magnitude.

    The cosine similarity alone would not see results that are a multiple of the right ones.
    """

    cosine: float
    sqnr: float
    error: float

    def changed(
        self, cosine: float | None = None, sqnr: float | None = None, error: float | None = None
    ) -> ResourceLimits:
        """With these limits in place of the usual ones.

        A lower ``cosine`` than usual lowers the SQNR to that of noise of this cosine, 2 (1 - cosine) of the signal's
        power, and leaves single elements unjudged.
        """
        limits = self
        if cosine is not None:
            limits = replace(limits, cosine=cosine)
            if cosine < self.cosine:
                limits = ResourceLimits(cosine, min(self.sqnr, sqnr_of(cosine)), math.inf)
        return replace(
            limits, sqnr=limits.sqnr if sqnr is None else sqnr, error=limits.error if error is None else error
        )


def sqnr_of(cosine: float) -> float:
    """The SQNR in dB of noise that lowers the cosine similarity to ``cosine``, at most 1, and keeps the scale."""
    return -10 * math.log10(max(2 * (1 - cosine), 1e-30))


LIMITS = {
    "cpu": ResourceLimits(0.999, 40.0, 0.01),
    "half": ResourceLimits(0.999, 27.0, 0.05),
    "quantized": ResourceLimits(0.98, 14.0, 0.5),
}
"""The limits of floats in 32 bits and in 16 bits, and of quantised networks; cosine similarities as MACE's for a CPU
and for integers."""


def kind_of(quantised: bool, precision: str | None) -> str:
    """The key of a network in ``LIMITS``."""
    return "quantized" if quantised else "half" if precision in ("fp16", "bf16") else "cpu"
