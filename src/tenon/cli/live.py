"""``tenon run MODEL --camera 0``: answers on the frames of a camera, a video file or a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.cli.answers import decoded_answer
from tenon.cli.console import console, duration, print_json
from tenon.cli.live_options import FrameSource
from tenon.cli.window import window
from tenon.errors import InputError
from tenon.runtime.engine.detect import image_input, why_none
from tenon.runtime.engine.image import preprocess
from tenon.runtime.engine.video import frames, open_cv

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

    from tenon.cli.option_groups import OutputOptions
    from tenon.runtime.answers.answer import Answer
    from tenon.runtime.engine import Engine

_SHOWN = 6
"""Parts of an answer on the line of a frame."""
_RATE = 25.0
"""Frames in a second of videos that are written."""


def watch(
    engine: Engine,
    source: FrameSource,
    changes: Mapping[str, Any],
    names: Sequence[str],
    output: OutputOptions,
    *,
    as_json: bool,
) -> None:
    """Run a network on frame after frame, print a line for each, and show or write them with the answers drawn in.

    Ends with the video, after the number of frames asked for, with "q" in the window or when it is closed, or with
    Ctrl-C.  Raises InputError for a network whose outputs are not recognised, and like ``frames``.
    """
    name = image_input(engine)
    given, preprocessing = engine.inputs[name], engine.manifest.preprocessing[name].changed(changes)
    listed, began, seconds = [], perf_counter(), 0.0
    with window(source.show) as shown, _recorder(output.draw) as record:
        for number, photo in enumerate(_until_stopped(islice(frames(source.source), source.limit))):
            image = preprocess(photo, given.shape, preprocessing, given.dtype, source.crop)
            start = perf_counter()
            results = engine.run({name: image.pixels})
            seconds += (elapsed := perf_counter() - start)
            answer = decoded_answer(engine, {name: image.pixels}, results, image, names, output)
            if answer is None:
                raise InputError(f"the outputs of '{engine.name}' are not recognised: {why_none(engine)}")
            listed.append({"frame": number, "seconds": elapsed, **answer.data})
            if not as_json:
                console.print(
                    f"frame {number}  {duration(1e3 * elapsed)}  {_line(answer)}", markup=False, soft_wrap=True
                )
            drawn = answer.draw(photo) if answer.draw and (source.show or output.draw) else photo
            record(drawn)
            if not shown(drawn):
                break
    if not listed:
        raise InputError(f"{source.source}: there are no frames")
    rate = len(listed) / max(1e-9, perf_counter() - began)
    if as_json:
        return print_json({"frames": listed, "frames_per_second": rate})
    mean = duration(1e3 * seconds / len(listed))
    return console.print(
        f"{len(listed)} frames, {mean} of the network each, {rate:.1f} frames per second", markup=False
    )


def _until_stopped(photos: Iterator[Photo]) -> Iterator[Photo]:
    """The frames until Ctrl-C, which ends a camera as its end ends a file."""
    try:
        yield from photos
    except KeyboardInterrupt:
        return


def _line(answer: Answer) -> str:
    """The answer on a line: of detections and classes the best with their scores, of others the summary."""
    if not answer.rows:
        return answer.summary
    parts = [f"{row[0]} {row[1]}" for row in answer.rows[:_SHOWN]]
    return ", ".join(parts) + (", ..." if len(answer.rows) > _SHOWN else "")


@contextmanager
def _recorder(path: Path | None) -> Iterator[Any]:
    """A function that adds an image to the file: a video (.avi, .mp4), or an animation (.gif)."""
    if path is None:
        yield lambda photo: None
        return
    if path.suffix.lower() == ".gif":
        yield from _animation(path)
    elif path.suffix.lower() in (".avi", ".mp4", ".mkv"):
        yield from _video(path)
    else:
        raise InputError(f"--draw {path}: frames are written to .avi, .mp4, .mkv or .gif")


def _animation(path: Path) -> Iterator[Any]:
    from tenon.atomic_write import writing

    photos: list[Photo] = []
    yield photos.append
    if photos:
        with writing(path, "--draw") as file:
            photos[0].save(file, "GIF", save_all=True, append_images=photos[1:], duration=1000 / _RATE, loop=0)


def _video(path: Path) -> Iterator[Any]:
    cv2 = open_cv()
    code = "MJPG" if path.suffix.lower() == ".avi" else "mp4v"
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    writer: list[Any] = []

    def add(photo: Photo) -> None:
        if not writer:
            writer.append(cv2.VideoWriter(str(part), cv2.VideoWriter_fourcc(*code), _RATE, photo.size))
            if not writer[0].isOpened():
                raise InputError(f"--draw {path}: OpenCV cannot write it")
        writer[0].write(np.ascontiguousarray(np.asarray(photo)[:, :, ::-1]))

    try:
        yield add
        if writer:
            writer[0].release()
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
