"""``manifest.json``: what a bundle is, what it was made from, and a checksum of every file in it.

It holds no dates and no absolute paths: the same input and options give the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tenon.errors import BundleError

FILE = "manifest.json"
FORMAT: Literal[1] = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(_Record):
    """The model file that a bundle was made from."""

    file: str
    sha256: str
    format: str = "onnx"


class MadeFor(_Record):
    """The target that a bundle's code was compiled for."""

    name: str
    triple: str
    cpu: str
    pointer: int
    object: str


class Tensor(_Record):
    """An input or output: row-major at ``offset`` of the mutable region.

    ``extent``: along that axis only as many elements count as the output of that name says.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = Field(ge=0)
    bytes: int = Field(ge=0)
    extent: tuple[int, str] | None = None


class Step(_Record):
    """A kernel call: the node of the model it computes a part of, and its multiply-adds.

    The rest are facts about the node: its output's shape, the shape of its weights or window, its attributes (empty
    where it has none) and the bytes of all that it reads and writes.
    """

    layer: str
    op: str
    kernel: str
    macs: int
    output: tuple[int, ...] = ()
    filter: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1
    bytes: int = 0


class MemoryUse(_Record):
    """Bytes.  ``bound`` is the least that any placement of the activations could need; ``peak`` is all that must
    be writable."""

    constant: int = Field(ge=0)
    mutable: int = Field(ge=0)
    activations: int = Field(ge=0)
    bound: int
    peak: int
    alignment: int = Field(gt=0)


class CodeSize(_Record):
    """Bytes of machine code and of its constants."""

    code: int
    data: int


class FileRecord(_Record):
    bytes: int
    sha256: str


class Manifest(_Record):
    """Everything that is known of a bundle without opening its other files."""

    format: Literal[1] = FORMAT
    tenon: str
    name: str
    entry: str
    origin: Origin | None = None
    options: dict[str, str | int | float | bool | list[str] | None]
    compiler: str | None = None
    target: MadeFor
    threads: int = Field(default=1, ge=1)
    """The most threads that can run it together."""
    phases: int = Field(default=1, ge=1)
    """How many times these threads meet in a run."""
    error: float = 0.0
    """The largest error over the RMS of a layer's output that an algorithm adds to direct sums, as measured."""
    memory: MemoryUse
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernels: dict[str, int]
    nodes: tuple[Step, ...]
    size: CodeSize | None = None
    files: dict[str, FileRecord]

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, FileRecord]) -> dict[str, FileRecord]:
        if outside := [name for name in files if name in ("", "..") or PurePath(name).name != name]:
            raise ValueError(f"{outside[0]!r} is not a plain file name")
        return files

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle.  Raises BundleError if there is none or it is damaged."""
    path = folder / FILE
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it holds no {FILE}") from None
    except NotADirectoryError:
        raise BundleError(f"{folder} is not a bundle: it is not a folder") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged ({error}): compile the model again") from None
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise BundleError(f"{path} has format {found} and this Tenon reads {FORMAT}: install a newer Tenon")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise BundleError(f"{path} is damaged at {where}: {first['msg']}: compile the model again") from None
