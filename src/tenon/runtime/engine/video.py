"""Frames of cameras, video files and streams.

Animated GIF, PNG and WebP files are read by Pillow, everything else by OpenCV, where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

SUFFIXES = (".avi", ".gif", ".m4v", ".mjpeg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm")
_ANIMATED = (".gif", ".png", ".apng", ".webp")
_STREAMS = ("rtsp://", "rtsps://", "rtmp://", "udp://", "http://", "https://")
INSTALL = "install it with 'pip install opencv-python' (opencv-python-headless where there is no screen)"


def is_video(source: str) -> bool:
    """Whether a name is that of a video file or a stream."""
    return source.lower().endswith(SUFFIXES) or source.startswith(_STREAMS)


def open_cv() -> Any:
    """The module ``cv2``.  Raises InputError if it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise InputError(
            f"cameras and videos are read by OpenCV, which cannot be imported ({error}): {INSTALL}"
        ) from None
    with suppress(AttributeError):
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return cv2


def frames(source: int | str) -> Iterator[Photo]:
    """The images (RGB) of a camera by its number, of a video file or of a stream by its address, until it ends.

    Raises InputError for a source that cannot be opened, and if OpenCV is needed and not installed.
    """
    if isinstance(source, str) and source.lower().endswith(_ANIMATED):
        yield from _animation(Path(source))
        return
    if isinstance(source, str) and "://" not in source and not Path(source).exists():
        raise InputError(f"{source}: No such file or directory")
    cv2 = open_cv()
    capture = cv2.VideoCapture(source)
    try:
        if not capture.isOpened():
            what = f"--camera {source}: there is no camera of this number" if isinstance(source, int) else str(source)
            raise InputError(f"{what}: OpenCV cannot open it")
        yield from _captured(cv2, capture)
    finally:
        capture.release()


def _captured(cv2: Any, capture: Any) -> Iterator[Photo]:
    from PIL import Image

    while True:
        there, frame = capture.read()
        if not there:
            return
        yield Image.fromarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))


def _animation(path: Path) -> Iterator[Photo]:
    from PIL import Image, ImageSequence, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            for frame in ImageSequence.Iterator(file):
                yield frame.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable animation ({error})") from None
