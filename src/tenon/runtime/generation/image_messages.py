"""Images in the messages of conversations."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from tenon.errors import InputError
from tenon.runtime.text.chat_template import Messages

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

IMAGES = ("image", "image_url")
"""The types of parts of a message that are images."""


def images_of(messages: Messages) -> tuple[list[dict[str, Any]], list[Any]]:
    """The messages with ``{"type": "image"}`` for each image, and the images: photos, paths, or None for an image that
    is given in another way.  Raises InputError for an image that cannot be read."""
    plain, images = list[dict[str, Any]](), list[Any]()
    for message in messages:
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = [_part(part, images) for part in content]
        plain.append({**message, "content": content})
    return plain, images


def _part(part: Any, images: list[Any]) -> Any:
    if not isinstance(part, Mapping) or part.get("type") not in IMAGES:
        return part
    if part["type"] == "image":
        images.append(part.get("image"))
        return {"type": "image"}
    url = part.get("image_url")
    images.append(photo_at(str(url.get("url", "")) if isinstance(url, Mapping) else str(url or "")))
    return {"type": "image"}


def as_texts(messages: Messages, mark: str) -> list[dict[str, Any]]:
    """The messages with contents of one text each, in which ``mark`` stands for images."""
    return [{**message, "content": _text(message.get("content"), mark)} for message in messages]


def _text(content: Any, mark: str) -> Any:
    if not isinstance(content, list | tuple):
        return content
    marks = "".join(f"{mark}\n" for part in content if isinstance(part, Mapping) and part.get("type") == "image")
    texts = (str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return marks + "".join(texts)


def photo_at(url: str) -> Photo:
    """The photo in a ``data:`` URL of base64.  Raises InputError for other addresses, which are not fetched, and for
    bytes that are no image."""
    head, comma, content = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise InputError("images are given as data: URLs of base64, and not fetched from addresses")
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(BytesIO(base64.b64decode(content, validate=True))) as file:
            photo = ImageOps.exif_transpose(file)
            photo.load()
            return photo
    except UnidentifiedImageError:  # its message names the address of the bytes
        raise InputError("an image in a data: URL cannot be read: it is no JPEG, PNG, BMP, GIF, TIFF or WebP") from None
    except (OSError, SyntaxError, ValueError, binascii.Error, Image.DecompressionBombError) as error:
        raise InputError(f"an image in a data: URL cannot be read: {error}") from None
