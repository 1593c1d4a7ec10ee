"""How images stand in prompts and are preprocessed where no file says it, by the kind of model."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.formats.decompositions.transformers.clip import MEAN, SPREAD
from tenon.network.graph.preprocessing import Fit, Preprocessing, Sampling
from tenon.network.graph.text_model import ImageText

_AROUND = "<fake_token_around_image>"
HALF = (0.5, 0.5, 0.5)
"""The mean and the spread of the colours of SigLIP, from 0 to 1."""


def image_text(kind: str, rows: int, longest: int = 0) -> ImageText:
    """How models of a ``kind`` ("idefics3", "gemma3" or "llava"), whose towers give ``rows`` rows, read images.

    ``longest`` is the side to which images are resized before they are cut into parts; 0: they are not cut.
    """
    if kind == "idefics3":
        parts = (f"{_AROUND}<row_{{row}}_col_{{column}}>", "\n")
        return ImageText("<image>", f"{_AROUND}<global-img>", _AROUND, "<image>", parts, longest)
    if kind == "gemma3":
        mark, end = "<start_of_image>", "<end_of_image>"
        return ImageText(mark, f"\n\n{mark}", f"{end}\n\n", "<image_soft_token>", together=rows)
    return ImageText(row="<image>")


def image_preprocessing(
    mean: Sequence[float], spread: Sequence[float], sampling: Sampling, fit: Fit, *, resize: int = 0
) -> Preprocessing:
    """The preprocessing of an image whose colours have a mean and a spread from 0 to 1."""
    means, scales = (tuple(255 * v for v in mean), tuple(1 / (255 * v) for v in spread))
    return Preprocessing(mean=means, scale=scales, sampling=sampling, fit=fit, resize=resize)


def usual_preprocessing(kind: str) -> Preprocessing:
    """The preprocessing of models of a ``kind`` whose files do not state it."""
    if kind == "llava":
        return image_preprocessing(MEAN, SPREAD, "bicubic", "crop")
    return image_preprocessing(HALF, HALF, "lanczos" if kind == "idefics3" else "smooth", "stretch")
