"""``manifest.json``: what a bundle is, what it was made from, and a checksum of every file in it.

It holds no dates and no absolute paths: the same input and options give the same bytes.

Annotations are evaluated where they stand, which is quicker than later from text: this is read at every opening.
"""

import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from tenon.errors import BundleError
from tenon.ir.notebook import html_table, tensor_rows, tensors
from tenon.ir.preprocessing import Heads, Preprocessing
from tenon.validation import MisfitError, least, plain, reader

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

FILE = "manifest.json"
_DIGEST = '\n "digest": "{}"'
FORMAT: Literal[2] = 2
_KEYS = {"preprocessing": "pictures"}
"""Fields of ``Manifest`` whose key in the file differs."""

Size = Annotated[int, least(0)]
"""Bytes, or an offset in bytes."""


class Origin(NamedTuple):
    """The model file that a bundle was made from."""

    file: str
    sha256: str
    format: str = "onnx"


class Tuned(NamedTuple):
    """What ``tenon tune`` had to do with a bundle: of how many layers the algorithm was chosen by measured times, and
    a digest of these layers and choices.  Bundles with the same digest were made alike."""

    layers: Annotated[int, least(1)]
    sha256: str


class MadeFor(NamedTuple):
    """The target that a bundle's code was compiled for."""

    name: str
    triple: str
    cpu: str
    pointer: int
    object: str


class Tensor(NamedTuple):
    """An input or output: row-major at ``offset`` of the mutable region.

    ``extent``: along that axis only as many elements count as the output of that name says.
    ``string``: the last axis holds the bytes of strings, in UTF-8, with zeros behind the end of a shorter one.
    ``range``: the least and the largest number that an input holds, if it is known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: Size
    bytes: Size
    extent: tuple[int, str] | None = None
    string: bool = False
    range: tuple[float, float] | None = None

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Step(NamedTuple):
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


class Binding(NamedTuple):
    """The network for one choice of its inputs' shapes: an entry point with inputs and outputs of its own.

    ``mutable`` and ``activations`` are the bytes that it needs itself.
    """

    entry: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    mutable: Size
    activations: Size
    phases: Annotated[int, least(1)] = 1


class MemoryUse(NamedTuple):
    """Bytes.  ``bound`` is the least that any placement of the activations could need; ``peak`` is all that must
    be writable."""

    constant: Size
    mutable: Size
    activations: Size
    bound: int
    peak: int
    alignment: Annotated[int, least(1)]


class CodeSize(NamedTuple):
    """Bytes of machine code and of its constants."""

    code: int
    data: int


class FileRecord(NamedTuple):
    """Bytes of a file, its SHA-256, and the checksum that is compared whenever it is opened (``bundle.checksum``)."""

    bytes: Size
    sha256: str
    checksum: str


def _stays_inside(files: dict[str, FileRecord]) -> str:
    outside = [name for name in files if name in ("", "..") or os.path.basename(name) != name]
    return f"names a file {outside[0]!r}, which is not a plain file name" if outside else ""


class Manifest(NamedTuple):
    """Everything that is known of a bundle without opening its other files.

    ``threads`` is the most threads that can run it together, ``phases`` how many times these meet in a run, and
    ``error`` the largest error over the RMS of an output channel of a layer, on random data, that is more than direct
    sums in f32 have: that of the layer's algorithm (Winograd's, Strassen's), and of weights and activations in 16 bits.
    ``bindings`` are all shapes that the network is there for, if there are several; the rest is about the first, but
    for ``memory``, which is enough for each of them.
    ``tuned`` is None where estimates alone chose the algorithms.
    ``preprocessing`` says of inputs how an image becomes one, ``heads`` how a detector's outputs list what it found.
    ``digest`` is BLAKE2b, of 32 bytes, of the file with an empty text in its place: the file cannot be changed by hand.
    """

    tenon: str
    name: str
    entry: str
    options: dict[str, str | int | float | bool | list[str] | None]
    target: MadeFor
    memory: MemoryUse
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    kernels: dict[str, int]
    nodes: tuple[Step, ...]
    files: Annotated[dict[str, FileRecord], _stays_inside]
    threads: Annotated[int, least(1)] = 1
    phases: Annotated[int, least(1)] = 1
    error: float = 0.0
    origin: Origin | None = None
    compiler: str | None = None
    size: CodeSize | None = None
    preprocessing: Mapping[str, Preprocessing] = MappingProxyType({})
    heads: Heads | None = None
    bindings: tuple[Binding, ...] = ()
    tuned: Tuned | None = None
    digest: str = ""
    format: Literal[2] = FORMAT

    def __repr__(self) -> str:
        return f"Manifest('{self.name}', {self.target.name}: {self.ports()})"

    def ports(self) -> str:
        """Inputs and outputs on a line."""
        inputs, outputs = (tensors((t.name, t.type) for t in group) for group in (self.inputs, self.outputs))
        return f"{inputs} -> {outputs}"

    def html(self, title: str) -> str:
        """Inputs, outputs and sizes as a small table, for notebooks."""
        inputs, outputs = ([(t.name, t.type) for t in group] for group in (self.inputs, self.outputs))
        sizes = (("weights", self.memory.constant), ("peak RAM", self.memory.peak))
        about = [("target", "", self.target.name), ("threads", "", f"1 to {self.threads}")]
        rows = [*tensor_rows(inputs, outputs), *((name, "", f"{n:,} B") for name, n in sizes), *about]
        return html_table(f"{title} {self.name}", rows, ("", "name", "type"))

    def every_binding(self) -> tuple[Binding, ...]:
        """The bindings; one, of the network as it is, where there are not several."""
        return self.bindings or (self.alone(),)

    def alone(self) -> Binding:
        """The network for its first shapes, in all of the memory."""
        memory = self.memory
        return Binding(self.entry, self.inputs, self.outputs, memory.mutable, memory.activations, self.phases)

    def json(self) -> dict[str, Any]:
        """The content of the file, with the keys that the file has."""
        return {_KEYS.get(name, name): value for name, value in plain(self).items()}

    def text(self) -> str:
        """The file, with its digest."""
        blank = json.dumps(self._replace(digest="").json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        return blank.replace(_DIGEST.format(""), _DIGEST.format(_digest(blank.encode())), 1)


def shared_library(name: str) -> str:
    """The file of a bundle's code where programs load libraries."""
    return f"lib{name}.so"


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a bundle.  Raises BundleError if there is none, or it is damaged or was changed."""
    path = os.path.join(folder, FILE)
    raw, content = _read(folder, path)
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version != FORMAT:
        remedy = "install a newer Tenon" if version > FORMAT else "compile the model again"
        raise BundleError(f"{path} has format {version} and this Tenon reads {FORMAT}: {remedy}")
    try:
        manifest: Manifest = reader(Manifest)(_fields(content))
    except MisfitError as misfit:
        where = ".".join(_KEYS.get(str(name), str(name)) for name in misfit.where) or "top level"
        raise BundleError(f"{path} is damaged at {where}: it {misfit.why}: compile the model again") from None
    blank = raw.replace(_DIGEST.format(manifest.digest).encode(), _DIGEST.format("").encode(), 1)
    if _digest(blank) != manifest.digest:
        raise BundleError(f"{path} was changed or damaged (its digest differs): compile the model again")
    if why := _contradiction(manifest):
        raise BundleError(f"{path} is damaged: {why}: compile the model again")
    return manifest


def names_in(folder: str | os.PathLike[str]) -> set[str]:
    """The files of a bundle of this or an older format, as its manifest lists them.  Raises BundleError."""
    path = os.path.join(folder, FILE)
    content = _read(folder, path)[1]
    files = content.get("files") if isinstance(content, dict) and "tenon" in content else None
    if not isinstance(files, dict):
        raise BundleError(f"{path} is not of a bundle")
    return {FILE, *files}


def _read(folder: str | os.PathLike[str], path: str) -> tuple[bytes, Any]:
    """The file, and the JSON in it."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
        return raw, json.loads(raw)
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a bundle: it holds no {FILE}") from None
    except NotADirectoryError:
        raise BundleError(f"{folder} is not a bundle: it is not a folder") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged ({error}): compile the model again") from None


def _fields(content: Any) -> Any:
    """The JSON with the fields' names as keys."""
    names = {key: name for name, key in _KEYS.items()}
    return {names.get(key, key): value for key, value in content.items()} if isinstance(content, dict) else content


def _contradiction(manifest: Manifest) -> str:
    """What is wrong between its parts, or ""."""
    inputs, outputs = ({t.name for t in tensors} for tensors in (manifest.inputs, manifest.outputs))
    if missing := sorted(manifest.preprocessing.keys() - inputs):
        return f"preprocessing of {missing[0]!r}, which is not an input"
    heads = manifest.heads
    if heads is None:
        return ""
    if missing := sorted(set(heads.outputs) - outputs):
        return f"detections in {missing[0]!r}, which is no output"
    counts = {"lists": (3, 4), "boxes": (2,)}.get(heads.kind, (1,))
    return "" if len(heads.outputs) in counts else f"detections in {len(heads.outputs)} outputs"


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=32).hexdigest()
