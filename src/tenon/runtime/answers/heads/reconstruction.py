"""Anomaly detection by an autoencoder: what it has learnt it reproduces, other inputs it does not.

Source: Koizumi et al., Description and Discussion on DCASE2020 Challenge Task 2 (2020); MLPerf Tiny's benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Head):
    """The output has the input's size; the score is the mean of the squared differences.  With ``limit`` (or
    --threshold) the answer says whether the score is above it."""

    kind = "reconstruction"
    about = "a reconstruction of the input"

    limit: float = -1

    def scores(self, run: Run) -> Array:
        return np.array([self.error(run)])

    def error(self, run: Run) -> float:
        """The mean of the squared differences of the output and the input of its size.  Raises InputError if there is
        no such input."""
        output = run.outputs[self.outputs[0]].astype(np.float64)
        same = [array for array in run.inputs.values() if array.size == output.size]
        if len(same) != 1:
            raise InputError(
                f"--head reconstruction: {len(same)} inputs have as many values as the output {self.outputs[0]}"
            )
        return float(np.mean((output.reshape(-1) - same[0].reshape(-1)) ** 2))

    def answer(self, run: Run) -> Answer:
        error = self.error(run)
        limit = self.limit if run.threshold is None else run.threshold
        data: dict[str, object] = {"error": error}
        if limit < 0:
            return Answer(f"mean squared error {error:.4g}", data=data)
        verdict = "anomaly" if error > limit else "normal"
        return Answer(
            f"{verdict}: mean squared error {error:.4g}, limit {limit:g}", data={**data, "anomaly": error > limit}
        )
