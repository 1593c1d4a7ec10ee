"""Drawing into images: boxes, points, lines, text and areas of classes."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tenon.network.graph.dtype import Array

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

    from tenon.network.graph.preprocessing import Box


def colour(number: int) -> tuple[int, int, int]:
    """Distinct colours for consecutive numbers."""
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(number * 0.618 % 1, 0.8, 0.75))
    return red, green, blue


class Pen:
    """Draws into a copy of an image, ``photo``, with lines and letters that suit its size."""

    def __init__(self, photo: Photo) -> None:
        from PIL import ImageDraw, ImageFont

        self.photo = photo.convert("RGB").copy()
        self.draw = ImageDraw.Draw(self.photo)
        self.thick = max(2, round(min(photo.size) / 250))
        self.font = ImageFont.load_default(size=max(10, round(min(photo.size) / 30)))

    def box(self, box: Box, text: str, number: int) -> None:
        """A rectangle (left, top, right, bottom in pixels) with text in its corner."""
        self.draw.rectangle(box, outline=colour(number), width=self.thick)
        self.text((box[0] + self.thick, box[1] + self.thick), text, number)

    def text(self, at: tuple[float, float], text: str, number: int) -> None:
        """White text on the colour of ``number``."""
        left, top, right, bottom = self.draw.textbbox(at, text, font=self.font)
        frame = (left - self.thick, top - self.thick, right + self.thick, bottom + self.thick)
        self.draw.rectangle(frame, fill=colour(number))
        self.draw.text(at, text, fill=(255, 255, 255), font=self.font)

    def points(self, points: Array, edges: Sequence[tuple[int, int]] = (), shown: Array | None = None) -> None:
        """Points [n, 2] (x, y in pixels) with lines between them; ``shown`` [n] says which are drawn."""
        visible = np.ones(len(points), bool) if shown is None else shown
        for a, b in edges:
            if visible[a] and visible[b]:
                self.draw.line([tuple(points[a]), tuple(points[b])], fill=colour(1), width=self.thick)
        radius = self.thick if len(points) < 100 else max(1, self.thick / 2)
        for x, y in points[visible]:
            self.draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour(0))

    def areas(self, classes: Array, box: Box, background: int, opacity: float = 0.5) -> None:
        """Colour the pixels of ``box`` by their classes [h, w], except those of the background."""
        from PIL import Image

        left, top, right, bottom = (round(edge) for edge in box)
        palette = np.array([colour(number) for number in range(int(classes.max(initial=0)) + 1)], np.uint8)
        size = (max(1, right - left), max(1, bottom - top))
        tint = Image.fromarray(palette[classes]).resize(size, Image.Resampling.NEAREST)
        mask = Image.fromarray(np.where(classes == background, 0, round(255 * opacity)).astype(np.uint8))
        self.photo.paste(tint, (left, top), mask.resize(size, Image.Resampling.BILINEAR))
