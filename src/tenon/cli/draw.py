"""Draw detections into an image."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path

from tenon.atomic_write import writing
from tenon.errors import InputError
from tenon.runtime.engine.detect import Detection


def draw(path: Path, detections: Sequence[Detection], names: Sequence[str], out: Path) -> None:
    """Write the image at ``path`` with a labelled box for each detection; the suffix of ``out`` selects the format.

    Raises InputError if it cannot be written.
    """
    from PIL import Image, ImageDraw, ImageFont, ImageOps

    with Image.open(path) as file:
        drawn = ImageOps.exif_transpose(file).convert("RGB")
    pen, thick = ImageDraw.Draw(drawn), max(2, round(min(drawn.size) / 250))
    font = ImageFont.load_default(size=max(10, round(min(drawn.size) / 30)))
    for detection in reversed(detections):  # highest score last, so that it is on top
        name = names[detection.kind] if 0 <= detection.kind < len(names) else str(detection.kind)
        text, colour = f"{name} {detection.score:.2f}", _colour(detection.kind)
        pen.rectangle(detection.box, outline=colour, width=thick)
        left, top, right, bottom = pen.textbbox((detection.box[0] + thick, detection.box[1] + thick), text, font=font)
        pen.rectangle((left - thick, top - thick, right + thick, bottom + thick), fill=colour)
        pen.text((detection.box[0] + thick, detection.box[1] + thick), text, fill=(255, 255, 255), font=font)
    try:
        with writing(out, "--draw") as file:
            drawn.save(file, _format(out))
    except ValueError as error:
        raise InputError(f"--draw {out}: cannot be written ({error})") from None


def _format(out: Path) -> str:
    """Pillow's format for a file suffix.  Raises InputError for an unknown one."""
    from PIL import Image

    Image.init()
    name = Image.EXTENSION.get(out.suffix.lower())
    if name not in Image.SAVE:
        raise InputError(f"--draw {out}: '{out.suffix}' is not an image format: use .png or .jpg")
    return name


def _colour(kind: int) -> tuple[int, int, int]:
    """Distinct colours for consecutive class numbers."""
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(kind * 0.618 % 1, 0.8, 0.75))
    return red, green, blue
