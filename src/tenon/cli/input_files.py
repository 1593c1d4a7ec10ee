"""The files that ``tenon run`` reads: images, sounds, videos and arrays, and the inputs that they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon.cli.live_options import FrameSource, LiveOptions
from tenon.cli.parse import read_array
from tenon.cli.unused_options import refuse
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.manifest import size_ranges, typed_text
from tenon.runtime.engine.detect import image_input
from tenon.runtime.engine.image import InputImage, image_shape, read_image
from tenon.runtime.engine.sound import SUFFIX
from tenon.runtime.engine.video import is_video

if TYPE_CHECKING:
    from tenon.runtime.engine import Engine
    from tenon.runtime.engine.device import RemoteBundle


@dataclass(frozen=True)
class InputFiles:
    """The inputs of a run: an image, sound or video with overrides of its preprocessing, and .npy files by input name
    ("": the only input)."""

    given: str | Path | None
    preprocess: Mapping[str, Any]
    arrays: Mapping[str, Path]
    live: LiveOptions = field(default_factory=LiveOptions)

    @property
    def image(self) -> Path | None:
        """The image file, if it is one."""
        return None if self.given is None or self.sound or self.frames is not None else Path(self.given)

    @property
    def sound(self) -> Path | None:
        """The sound file, if it is one."""
        return Path(self.given) if self.given is not None and str(self.given).lower().endswith(SUFFIX) else None

    @property
    def frames(self) -> FrameSource | None:
        """Where frames come from, if a camera, video or stream is given."""
        live, camera = self.live, self.live.camera
        if camera is None and (self.given is None or not is_video(str(self.given))):
            return None
        if camera is not None and self.given is not None:
            raise InputError(f"--camera {camera}: {self.given} is given already")
        return FrameSource(str(self.given) if camera is None else camera, live.frames, live.part(), live.show)

    def check(self) -> None:
        """Raises InputError for options that have no effect on these files, OSError for a file that is not there."""
        for path in (self.image, self.sound, *self.arrays.values()):
            if path is not None:
                _check_exists(path)
        if self.preprocess and self.image is None and self.frames is None:
            raise InputError(f"--{next(iter(self.preprocess))} is for an image, and none was given")
        if self.frames is None:
            refuse({"show": self.live.show, "frames": self.live.frames}, "give --camera or a video file")
        if self.image is None and self.frames is None:
            refuse({"crop": self.live.crop}, "give an image")
        if self.image is None:
            refuse({"match": self.live.match}, "give an image")
        if self.sound is None:
            refuse({"features": self.live.features}, "give a sound (.wav)")


def _check_exists(path: Path) -> None:
    """Raises OSError for a file that is not there, InputError for what looks like a text rather than a file."""
    try:
        path.stat()
    except FileNotFoundError:
        if " " in path.name and not path.suffix:
            raise InputError(f"{path}: no such file; a text is given with --prompt, or with --text") from None
        raise


def read_feeds(
    engine: Engine | RemoteBundle, files: InputFiles, *, apply_changes: bool
) -> tuple[dict[str, Array], InputImage | None]:
    """The inputs, and the image among them.  ``apply_changes``: the overrides are not yet part of the bundle."""
    inputs, feeds, image = engine.inputs, {}, None
    needed = {t.name: typed_text(t, size_ranges(engine.manifest.inputs)) for t in engine.manifest.needed_inputs}
    for name, path in files.arrays.items():
        if not name and len(needed) != 1:
            raise InputError(
                f"--input {path}: the model has {len(needed)} inputs: write NAME=FILE with one of {_names(needed)}"
            )
        feeds[name or next(iter(needed))] = read_array(path)
    language = engine.manifest.language
    if not feeds and language is not None and language.kind == "decoder":
        raise InputError("nothing to run on: give a text to go on with (--prompt), or talk to the model (tenon chat)")
    if files.image is not None:
        name = image_input(engine, without=feeds)
        preprocessing = engine.manifest.preprocessing[name]
        if apply_changes and files.preprocess:
            if preprocessing.within:
                raise InputError("the preprocessing is compiled into this bundle: compile the model again to change it")
            preprocessing = preprocessing.changed(files.preprocess)
        shape = image_shape(engine.manifest.inputs, name)
        image = read_image(files.image, shape, preprocessing, inputs[name].dtype, files.live.part())
        feeds[name] = image.pixels
    if language is not None and language.kind == "encoder" and language.ports.get("tokens", "") in {*needed} - {*feeds}:
        raise InputError(f"'{engine.manifest.name}' reads texts: give one or several (--text)")
    if not feeds and needed:
        raise InputError(f"nothing to run on: give an image, or --input NAME=FILE.npy for {_names(needed)}")
    return feeds, image


def _names(inputs: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type}" for name, type in inputs.items())
