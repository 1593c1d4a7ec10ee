"""Recognition of faces and things by vectors: two images show the same if their vectors point the same way.

Source: Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run
from tenon.runtime.bundle.manifest import BundleTensor


@dataclass(frozen=True, kw_only=True)
class Embedding(Head):
    """The output is a vector; the score is the cosine of the angle between it and that of the image of --match.  With
    ``limit`` (or --threshold) the answer says whether the score is at least that."""

    kind = "embedding"
    about = "a vector that describes the image"

    limit: float = 2.0

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        return [t for t in outputs if max(t.shape, default=1) == int(np.prod(t.shape)) > 1]

    def answer(self, run: Run) -> Answer:
        vector = _unit(run.outputs[self.outputs[0]])
        if run.match is None:
            text = f"a vector of {vector.size} numbers: compare it with that of another image by --match IMAGE"
            return Answer(text, data={"vector": vector.tolist()})
        cosine = float(vector @ _unit(run.match[self.outputs[0]]))
        limit = self.limit if run.threshold is None else run.threshold
        data: dict[str, object] = {"vector": vector.tolist(), "similarity": cosine}
        if limit > 1:
            return Answer(f"similarity {cosine:.3f}", data=data)
        verdict = "the same" if cosine >= limit else "different"
        return Answer(f"{verdict}: similarity {cosine:.3f}, limit {limit:g}", data={**data, "same": cosine >= limit})


def _unit(values: Array) -> Array:
    """The vector with length 1.  Raises InputError for zeros, which have no direction."""
    vector = np.asarray(values, np.float64).reshape(-1)
    length = float(np.linalg.norm(vector))
    if not length:
        raise InputError("--head embedding: the vector is zero, which is like no other")
    return np.asarray(vector / length)
