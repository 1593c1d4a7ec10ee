"""Write an image with the answer drawn into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tenon.atomic_write import writing
from tenon.errors import InputError
from tenon.runtime.engine.image import open_photo

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

    from tenon.runtime.answers.answer import Answer


def draw(path: Path, answer: Answer, out: Path) -> None:
    """Write the image at ``path`` with the answer drawn into it; the suffix of ``out`` selects the format.

    Raises InputError if it cannot be written.
    """
    photo = open_photo(path).convert("RGB")
    save_photo(answer.draw(photo) if answer.draw else photo, out)


def save_photo(photo: Photo, out: Path) -> None:
    """Write an image.  Raises InputError if it cannot be written in the format of the suffix."""
    try:
        with writing(out, "--draw") as file:
            photo.save(file, _format(out))
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
