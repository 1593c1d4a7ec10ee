"""``manifest.json``: description of a bundle, its origin, and checksums of all files.

It contains no dates and no absolute paths: the same input and options give the same bytes.

Annotations are evaluated eagerly, which makes opening bundles faster than evaluating them from strings.
"""

import json
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from tenon.errors import BundleError
from tenon.network.graph.device_placement import DevicePlacement
from tenon.network.graph.notebook import html_table, tensor_rows, tensors
from tenon.network.graph.preprocessing import Heads, Preprocessing
from tenon.network.graph.size_range import SizeRange
from tenon.network.graph.text_model import ImageText
from tenon.validation import MisfitError, least, plain, reader

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

FILE = "manifest.json"
_DIGEST = '\n "digest": "{}"'
FORMAT: Literal[1] = 1
DEVICE_INPUT = "tenon_device_"
"""Inputs through which the code calls devices begin so; the device's name follows."""

COUNT_BYTES = 8
"""Bytes of an extent that a run chooses or computes: an i64."""

Size = Annotated[int, least(0)]
"""Bytes, or an offset in bytes."""


class SourceRecord(NamedTuple):
    """The model file that a bundle was compiled from."""

    file: str
    sha256: str
    format: str = "onnx"


class Tuned(NamedTuple):
    """How measured times were used: the number of layers whose algorithm they selected, and a digest of these layers
    and algorithms."""

    layers: Annotated[int, least(1)]
    sha256: str


class StoredTypes(NamedTuple):
    """How weights are stored that are computed with in f32: layers and bytes by type, and the largest error of an
    output over its RMS, if it was measured."""

    layers: dict[str, int]
    bytes: dict[str, int]
    error: float | None = None

    def __str__(self) -> str:
        parts = [f"{count} layer(s) in {name}" for name, count in self.layers.items()]
        error = [] if self.error is None else [f"error of the outputs {100 * self.error:.2g} % of their RMS"]
        return ", ".join([*parts, *error])


class PatchedLayers(NamedTuple):
    """The first ``layers`` layers, up to ``last``, are computed in ``number`` patches of ``rows`` rows of its result;
    that takes ``extra_macs`` more multiply-accumulates than at once."""

    number: Annotated[int, least(1)]
    rows: Annotated[int, least(1)]
    layers: Annotated[int, least(1)]
    last: str
    extra_macs: int


class TokenizerRecord(NamedTuple):
    """The file of a tokenizer, and its form (``graph.text_model``)."""

    form: Literal["tokenizer.json", "gguf", "sentencepiece"]
    file: str


class TextRecord(NamedTuple):
    """The settings of a language model (``graph.text_model.TextModel``), with its tokenizer as a file."""

    kind: str
    architecture: str = ""
    ports: Mapping[str, str] = MappingProxyType({})
    context: int = 0
    tokenizer: TokenizerRecord | None = None
    bos: int | None = None
    pad: int | None = None
    unknown: int | None = None
    eos: tuple[int, ...] = ()
    add_bos: bool = False
    add_eos: bool = False
    chat_template: str = ""
    generation: Mapping[str, float] = MappingProxyType({})
    start: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    rewind: int | None = None
    room: int = 0
    grammar: str = ""
    image: ImageText | None = None


class MadeFor(NamedTuple):
    """The target that a bundle's code was compiled for; ``byte_order`` is that of weights, inputs and outputs."""

    name: str
    triple: str
    cpu: str
    pointer: int
    object: str
    byte_order: Literal["little", "big"] = "little"


class BundleTensor(NamedTuple):
    """An input or output: row-major at ``offset`` of the mutable region.

    ``extents``: each axis whose extent only a run knows, and the name of the input or output that holds the extent.
    ``size``: the range of an input that holds such an extent.
    ``string``: the last axis holds the bytes of strings, in UTF-8, with zeros behind the end of a shorter one.
    ``range``: minimum and maximum of an input, if known.
    ``scale``, ``zero_point``: a quantised element stands for scale * (element - zero point).
    ``initial``: what an input holds in the first run, if the model states it: one number for all elements, or every
    element.
    ``state``: of an input, the output that it holds after a run, in the same memory; of an output, that input.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: Size
    bytes: Size
    extents: tuple[tuple[int, str], ...] = ()
    size: SizeRange | None = None
    string: bool = False
    range: tuple[float, float] | None = None
    scale: float | None = None
    zero_point: int | None = None
    initial: tuple[float, ...] | None = None
    state: str = ""

    @property
    def calls_device(self) -> bool:
        """Whether it is no input of the network, but tells the code how to call a device."""
        return self.name.startswith(DEVICE_INPUT)

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def counts_of_states(tensors: Iterable[BundleTensor]) -> set[str]:
    """The sizes among some inputs that are states themselves, as the number of tokens in a decoder's caches is."""
    return {tensor.name for tensor in tensors if tensor.state and tensor.size is not None}


def size_ranges(tensors: Iterable[BundleTensor]) -> dict[str, SizeRange]:
    """The ranges of the sizes among some inputs, by name."""
    return {tensor.name: tensor.size for tensor in tensors if tensor.size is not None}


def typed_text(tensor: BundleTensor, ranges: Mapping[str, SizeRange] = MappingProxyType({})) -> str:
    """The type of an input or output, with the names of the sizes that are extents of it and, if they are among
    ``ranges``, their ranges; an extent that the network computes has the range from 0 to the largest."""
    dims = list(map(str, tensor.shape))
    for axis, name in tensor.extents:
        dims[axis] = f"{name}:{ranges[name]}" if name in ranges else name if name.isidentifier() else f"0..{dims[axis]}"
    return f"{tensor.dtype}[{','.join(dims)}]"


class CallRecord(NamedTuple):
    """A kernel call: the layer and operator that it belongs to, and its multiply-accumulates.

    ``instructions`` is the most that the call executes, if that was computed.  The other fields describe the node:
    shape of its output, shape of its weights or window, attributes (empty if it has none), and bytes read and written.
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
    instructions: int | None = None


class Binding(NamedTuple):
    """The network for one choice of input shapes, with its own entry point, inputs and outputs.

    ``mutable`` and ``activations`` are the bytes needed by this binding.
    """

    entry: str
    inputs: tuple[BundleTensor, ...]
    outputs: tuple[BundleTensor, ...]
    mutable: Size
    activations: Size


class MemoryUse(NamedTuple):
    """Bytes.  ``bound`` is a lower bound of the activations' size; ``peak`` is the size of all writable
    memory without the stack; ``stack`` is the most that a run takes of that, if it was computed."""

    constant: Size
    mutable: Size
    activations: Size
    bound: int
    peak: int
    alignment: Annotated[int, least(1)]
    stack: int | None = None


class CodeSize(NamedTuple):
    """Bytes of machine code and of its constants."""

    code: int
    data: int


class LibraryCalls(NamedTuple):
    """The functions that an object calls, by where they are: ``libm``, ``libc`` (memory only), and the ``compiler``'s
    own library, which it links by itself (libgcc, compiler_rt)."""

    libm: tuple[str, ...] = ()
    libc: tuple[str, ...] = ()
    compiler: tuple[str, ...] = ()


class FileRecord(NamedTuple):
    """Size of a file, its SHA-256, and the checksum verified when a bundle is opened (``bundle.checksum``), of the form
    that the manifest's format has."""

    bytes: Size
    sha256: str
    checksum: str


def _stays_inside(files: dict[str, FileRecord]) -> str:
    outside = [name for name in files if name in ("", "..") or os.path.basename(name) != name]
    return f"names a file {outside[0]!r}, which is not a plain file name" if outside else ""


class Manifest(NamedTuple):
    """Description of a bundle.

    ``threads`` is the maximum number of threads, and ``error`` the largest
    additional error of a layer relative to the RMS of an output channel, on random data, compared with direct f32 sums:
    the error of its algorithm (Winograd, Strassen) and of weights and activations in 16 bits.
    ``bindings`` lists all bindings, if there are several; the other fields describe the first one, except ``memory``,
    which suffices for all.
    ``tuned`` is None if all algorithms were selected by estimate.
    ``preprocessing`` is the image preprocessing by input name, ``heads`` the format of detection outputs,
    ``decoding`` how other answers are decoded (``answers``: a kind and its fields), ``labels`` the names of the
    classes, if known.
    ``language`` has the settings of a language model.
    ``arithmetic`` is that of quantised operators.  If it makes every target give the same bits, ``answer`` is the
    digest of the outputs for the fixed input (``graph.fixed_input``), by the references of the operators.
    ``instructions`` is the most that a run of the first binding executes, if that was computed: not cycles.
    ``calls`` are the functions of libraries that the object calls, on targets without operating system.
    ``stored`` says in which types weights are stored, if fewer bits were asked for.
    ``placement`` says which devices run which nodes, if some run on others than the target's.
    ``patches`` describes patch-wise execution, of the first binding, if a budget of RAM asked for it.
    ``digest`` is the BLAKE2b hash (32 bytes) of the file with an empty digest; it detects manual changes.
    """

    tenon: str
    name: str
    entry: str
    options: dict[str, str | int | float | bool | list[str] | None]
    target: MadeFor
    memory: MemoryUse
    inputs: tuple[BundleTensor, ...]
    outputs: tuple[BundleTensor, ...]
    kernels: dict[str, int]
    nodes: tuple[CallRecord, ...]
    files: Annotated[dict[str, FileRecord], _stays_inside]
    threads: Annotated[int, least(1)] = 1
    error: float = 0.0
    origin: SourceRecord | None = None
    compiler: str | None = None
    size: CodeSize | None = None
    preprocessing: Mapping[str, Preprocessing] = MappingProxyType({})
    heads: Heads | None = None
    decoding: Mapping[str, str] = MappingProxyType({})
    labels: tuple[str, ...] = ()
    language: TextRecord | None = None
    bindings: tuple[Binding, ...] = ()
    tuned: Tuned | None = None
    arithmetic: Literal["tflm", "litert", "onnx", "float"] = "float"
    answer: str = ""
    instructions: int | None = None
    calls: LibraryCalls | None = None
    patches: PatchedLayers | None = None
    placement: DevicePlacement | None = None
    stored: StoredTypes | None = None
    digest: str = ""
    format: Literal[1] = FORMAT

    def __repr__(self) -> str:
        return f"Manifest('{self.name}', {self.target.name}: {self.ports()})"

    @property
    def own_inputs(self) -> tuple[BundleTensor, ...]:
        """The inputs of the network, without those through which the code calls devices."""
        return tuple(tensor for tensor in self.inputs if not tensor.calls_device)

    @property
    def needed_inputs(self) -> tuple[BundleTensor, ...]:
        """The inputs that have to be given: not states, nor sizes that are extents of other inputs."""
        return tuple(tensor for tensor in self.shown_inputs if not tensor.state)

    @property
    def shown_inputs(self) -> tuple[BundleTensor, ...]:
        """The inputs of the network without sizes that are extents of others."""
        held = {name for tensor in self.inputs for _, name in tensor.extents}
        return tuple(tensor for tensor in self.own_inputs if tensor.name not in held)

    @property
    def state_bytes(self) -> int:
        """The bytes of mutable memory that keep their content from run to run, such as a decoder's caches."""
        return sum(tensor.bytes for tensor in self.own_inputs if tensor.state)

    @property
    def part_devices(self) -> tuple[str, ...]:
        """The names of the devices that run parts of the network."""
        return tuple(t.name.removeprefix(DEVICE_INPUT) for t in self.inputs if t.calls_device)

    def ports(self) -> str:
        """Inputs and outputs on a line."""
        inputs, outputs = map(tensors, self._typed())
        return f"{inputs} -> {outputs}"

    def _typed(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Names and types of inputs and outputs; sizes are in the shapes of the inputs that have them."""
        ranges = size_ranges(self.inputs)
        inputs = [(t.name, typed_text(t, ranges)) for t in self.shown_inputs]
        return inputs, [(t.name, typed_text(t)) for t in self.outputs]

    def html(self, title: str) -> str:
        """Inputs, outputs and sizes as a small table, for notebooks."""
        inputs, outputs = self._typed()
        sizes = (("weights", self.memory.constant), ("peak RAM", self.memory.peak))
        about = [("target", "", self.target.name), ("threads", "", f"1 to {self.threads}")]
        rows = [*tensor_rows(inputs, outputs), *((name, "", f"{n:,} B") for name, n in sizes), *about]
        return html_table(f"{title} {self.name}", rows, ("", "name", "type"))

    def every_binding(self) -> tuple[Binding, ...]:
        """All bindings; a single one if ``bindings`` is empty."""
        return self.bindings or (self.first_binding(),)

    def first_binding(self) -> Binding:
        """The first binding, with the memory of the whole bundle."""
        memory = self.memory
        return Binding(self.entry, self.inputs, self.outputs, memory.mutable, memory.activations)

    def json(self) -> dict[str, Any]:
        """The content of the file."""
        content: dict[str, Any] = plain(self)
        return content

    def text(self) -> str:
        """The file, with its digest."""
        fields = sorted(self._replace(digest="").json().items())
        blank = "{\n " + ",\n ".join(f'"{key}": {_field(value)}' for key, value in fields) + "\n}\n"
        return blank.replace(_DIGEST.format(""), _DIGEST.format(_digest(blank.encode())), 1)


def _field(value: Any) -> str:
    """JSON in a line, or in one for each item of a list of objects: short, because it is read whenever a bundle is
    opened."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n  " + ",\n  ".join(map(_field, value)) + "\n ]"
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def shared_library(name: str) -> str:
    """The file name of a bundle's shared library."""
    return f"lib{name}.so"


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a bundle.  Raises BundleError if there is none, or it is damaged or was changed."""
    path = os.path.join(folder, FILE)
    return parse_manifest(_read(folder, path), path)


def parse_manifest(raw: bytes, path: str) -> Manifest:
    """The manifest with these bytes; ``path`` is for messages.  Raises BundleError if it is damaged or was changed."""
    content = _json(raw, path)
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version != FORMAT:
        remedy = "install a newer Tenon" if version > FORMAT else "compile the model again"
        raise BundleError(f"{path} has format {version} and this Tenon reads {FORMAT}: {remedy}")
    try:
        manifest: Manifest = reader(Manifest)(content)
    except MisfitError as misfit:
        where = ".".join(map(str, misfit.where)) or "top level"
        raise BundleError(f"{path} is damaged at {where}: it {misfit.why}: compile the model again") from None
    blank = raw.replace(_DIGEST.format(manifest.digest).encode(), _DIGEST.format("").encode(), 1)
    if _digest(blank) != manifest.digest:
        raise BundleError(f"{path} was changed or damaged (its digest differs): compile the model again")
    if why := _contradiction(manifest):
        raise BundleError(f"{path} is damaged: {why}: compile the model again")
    return manifest


def names_in(folder: str | os.PathLike[str]) -> set[str]:
    """The files of a bundle of any format, as its manifest lists them.  Raises BundleError."""
    path = os.path.join(folder, FILE)
    content = _json(_read(folder, path), path)
    files = content.get("files") if isinstance(content, dict) and "tenon" in content else None
    if not isinstance(files, dict):
        raise BundleError(f"{path} is not of a bundle")
    return {FILE, *files}


def _read(folder: str | os.PathLike[str], path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        why = f"it holds no {FILE}" if os.path.exists(folder) else "there is no such file or folder"
        raise BundleError(f"{folder} is not a bundle: {why}") from None
    except NotADirectoryError:
        raise BundleError(f"{folder} is not a bundle: it is not a folder") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None


def _json(raw: bytes, path: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged ({error}): compile the model again") from None


def _contradiction(manifest: Manifest) -> str:
    """An inconsistency between fields, or ""."""
    inputs, outputs = ({t.name for t in tensors} for tensors in (manifest.inputs, manifest.outputs))
    if missing := sorted(manifest.preprocessing.keys() - inputs):
        return f"preprocessing of {missing[0]!r}, which is not an input"
    if wrong := next(filter(None, map(_wrong_extents, manifest.every_binding())), ""):
        return wrong
    if wrong := next(filter(None, map(_wrong_state, manifest.every_binding())), ""):
        return wrong
    tokenizer = manifest.language.tokenizer if manifest.language else None
    if tokenizer is not None and manifest.files and tokenizer.file not in manifest.files:
        return f"its tokenizer is in {tokenizer.file!r}, which is no file of it"
    heads = manifest.heads
    if heads is None:
        return ""
    if missing := sorted(set(heads.outputs) - outputs):
        return f"detections in {missing[0]!r}, which is no output"
    counts = {"lists": (3, 4), "boxes": (2,)}.get(heads.kind, (1,))
    return "" if len(heads.outputs) in counts else f"detections in {len(heads.outputs)} outputs"


def _wrong_extents(binding: Binding) -> str:
    """The reason why the extents that a run chooses or computes cannot be those of a network, or ""."""
    tensors = (*binding.inputs, *binding.outputs)
    counts = {t.name for t in tensors if t.dtype == "i64" and t.bytes == COUNT_BYTES}
    for t in tensors:
        for axis, name in t.extents:
            if not 0 <= axis < len(t.shape) or name not in counts:
                return f"axis {axis} of {t.name!r} has its extent in {name!r}"
        if t.size is not None and (t.name not in counts or t.size.problem):
            return f"{t.name!r} is a size of {t.size}"
    return ""


def _wrong_state(binding: Binding) -> str:
    """The reason why states cannot be those of a network, or ""."""
    places = [
        {(t.name, t.state) if of_inputs else (t.state, t.name): (t.offset, t.type) for t in tensors if t.state}
        for of_inputs, tensors in ((True, binding.inputs), (False, binding.outputs))
    ]
    before, after = places
    wrong = next((pair for pair in (*before, *after) if before.get(pair) != after.get(pair)), None)
    return "" if wrong is None else f"{wrong[0]!r} and {wrong[1]!r} are no state"


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=32).hexdigest()
