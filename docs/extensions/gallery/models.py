"""Models of the gallery, read from YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml

from tenon.validation import MisfitError, matching, reader

FOLDER = Path(__file__).parents[2] / "gallery" / "models"
RESULTS = FOLDER.parent / "results"
ABSENT = FOLDER.parent / "absent.yaml"

WANTED = (
    "MobileNet V1",
    "MobileNet V2",
    "MobileNet V3",
    "SqueezeNet",
    "ShuffleNetV2",
    "ResNet",
    "GoogLeNet",
    "Inception",
    "VGG",
    "EfficientNet",
    "MobileNet-SSD",
    "YOLOv2",
    "YOLOv3",
    "YOLOv4",
    "YOLOv5",
    "YOLOv8",
    "YOLOX",
    "YOLO-Fastest",
    "NanoDet",
    "EfficientDet",
    "UltraFace",
    "RetinaFace",
    "landmark",
    "MobileFaceNet",
    "U-Net",
    "YOLACT",
    "OpenPose",
    "AlphaPose",
    "HRNet",
    "CRNN",
    "keyword spotting",
    "TDNN-LSTM",
    "MNIST",
    "HAR-CNN",
    "MLPerf Tiny",
    "camera loop",
    "SmolLM2-135M",
    "stories260K",
    "Whisper tiny",
    "Moonshine tiny",
    "SmolVLM-256M",
    "Piper",
    "all-MiniLM-L6-v2",
)
"""The models that are to be shown: each has a page, or a reason why not in ``absent.yaml``."""

Digest = Annotated[str, matching("[0-9a-f]{64}", 64)]


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that a command reads.

    It is ``path`` in the folder of models, of which ``source`` is the public address; or a member of a package of
    PyPI (``package``, NAME==VERSION, and ``member``); or ``content``, a text; or ``picture``, an image of ``size``
    (width, height) with these lines of text; or an animation that pans over the image ``frames_of``, one of the other
    files.  ``name`` is that in the command, by default the last part of the path.
    """

    path: str = ""
    name: str = ""
    source: str = ""
    package: str = ""
    member: str = ""
    sha256: Digest | None = None
    licence: str = ""
    content: str = ""
    frames_of: str = ""
    picture: tuple[str, ...] = ()
    size: tuple[int, int] = (320, 48)

    @property
    def called(self) -> str:
        """The name in the command."""
        return self.name or (self.path or self.member).rsplit("/", 1)[-1]

    @property
    def ours(self) -> bool:
        """Whether it is made here, and not fetched."""
        return bool(self.content or self.picture or self.frames_of)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The same network in another precision.

    ``quantize`` is the command that makes its file, without ``tenon``; else it is one of the model's files.  The
    model's own command is run with that file as well, with ``options`` added, and has to print ``expect``.
    """

    type: str
    file: str
    peer: str = ""
    quantize: str = ""
    options: str = ""
    expect: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Model:
    """A page of the gallery.

    ``names`` are entries of the list of wanted models that it shows.  ``command`` is the one command, without
    ``tenon``; ``expect`` are texts that its output has to contain, because they are the right answer.  ``draw``: the
    command gets ``--draw`` for the picture.  ``variants`` are timed; ``targets`` are those that run it and have to
    give the same answer.  ``quick``: run by the tests.
    """

    name: str = ""
    title: str
    task: str
    names: tuple[str, ...]
    about: str
    command: str
    expect: tuple[str, ...]
    files: tuple[File, ...]
    variants: tuple[Variant, ...]
    targets: tuple[str, ...] = ()
    draw: bool = False
    quick: bool = False
    note: str = ""

    @property
    def words(self) -> list[str]:
        """The arguments of ``tenon``."""
        return shlex.split(self.command)

    @property
    def image(self) -> str:
        """The file with the drawn answer."""
        return f"{self.name}.gif" if any(file.frames_of for file in self.files) else f"{self.name}.png"

    @property
    def shown(self) -> str:
        """The command as the page shows it."""
        return f"tenon {self.command}" + (f" --draw {self.image}" if self.draw else "")

    def file(self, called: str) -> File:
        return next(file for file in self.files if file.called == called)


def read_models(folder: Path = FOLDER) -> list[Model]:
    """All models by task and title.  Raises ValueError that names the file and the field."""
    models = [read_model(path) for path in sorted(folder.glob("*.yaml"))]
    return sorted(models, key=lambda model: (model.task, model.title))


def read_model(path: Path) -> Model:
    """One model.  Raises ValueError that names the file and the field."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        model: Model = reader(Model)({**content, "name": path.stem})
    except MisfitError as misfit:
        raise ValueError(f"{path.name}: {'.'.join(map(str, misfit.where))} {misfit.why}") from None
    known = {file.called for file in model.files} | set(options_of(model.words, "--output"))
    words = [part for word in model.words[1:] for part in re.split(r"[\s=]", word)]
    files = [word for word in words if re.search(r"\.[a-z][a-z0-9]{1,11}$", word)]
    if unknown := [word for word in [*files, *(v.file for v in model.variants if not v.quantize)] if word not in known]:
        raise ValueError(f"{path.name}: the command reads {unknown[0]}, which is not one of its files")
    for file in model.files:
        if not file.ours and not (file.sha256 and file.licence and (file.source or file.package)):
            raise ValueError(f"{path.name}: {file.called} needs sha256, licence and source or package")
    return model


def read_absent() -> list[dict[str, Any]]:
    """The models without available weights: name, reason, and what is shown instead."""
    listed: list[dict[str, Any]] = yaml.safe_load(ABSENT.read_text(encoding="utf-8"))
    return listed


def options_of(words: Sequence[str], name: str) -> list[str]:
    """The values of an option that may be repeated."""
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word == name]
