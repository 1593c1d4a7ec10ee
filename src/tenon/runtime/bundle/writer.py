"""A compiled network in memory, and writing it to disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tenon import __version__
from tenon.atomic_write import Content, spooled, writing
from tenon.compilation import Compilation
from tenon.errors import InputError, InternalError, UnsupportedError, guarded, warn
from tenon.formats.wire.encryption import Key, read_key
from tenon.machine.codegen.backend import Unit
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.comments import harmless
from tenon.machine.kernel_ir.walk import run_time_iterations
from tenon.machine.plan.program import Program
from tenon.machine.plan.weights import IN_MEMORY
from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import Compiler, find
from tenon.machine.toolchain.size import sizes
from tenon.network.graph.device_placement import DevicePlacement
from tenon.network.graph.preprocessing import Heads, Preprocessing
from tenon.network.graph.text_model import TextModel
from tenon.network.graph.types import DType
from tenon.options import PARTS, Emit
from tenon.runtime.bundle import libraries, link
from tenon.runtime.bundle.banner import banner
from tenon.runtime.bundle.browser import description, webgpu_description
from tenon.runtime.bundle.c_tables import CTables, c_tables, tables_file, usual_tables
from tenon.runtime.bundle.container import SUFFIX, container_pieces, parts_of
from tenon.runtime.bundle.embedding_entry import SOURCES as EMBEDDING_SOURCES
from tenon.runtime.bundle.embedding_entry import embedding_header, embedding_source
from tenon.runtime.bundle.encrypted_files import encrypted_container
from tenon.runtime.bundle.folder import write_folder
from tenon.runtime.bundle.header import header, with_bounds, with_library_calls
from tenon.runtime.bundle.image_entry import SOURCES, image_header, image_source
from tenon.runtime.bundle.layout import layout
from tenon.runtime.bundle.library_calls import library_calls, possible_calls
from tenon.runtime.bundle.manifest import (
    FILE,
    CodeSize,
    LibraryCalls,
    Manifest,
    PatchedLayers,
    SourceRecord,
    StoredTypes,
    Tuned,
    size_ranges,
)
from tenon.runtime.bundle.manifest_parts import (
    binding,
    file_record,
    made_for,
    memory_use,
    steps,
    tensor,
)
from tenon.runtime.bundle.names import executable_name, identifier, library_name
from tenon.runtime.bundle.network_digest import network_digest
from tenon.runtime.bundle.packages import FORMS, Contents
from tenon.runtime.bundle.possible_parts import COMPILED, check_fixed_sizes, check_parts, check_programs, usual_parts
from tenon.runtime.bundle.preprocessing import classes_source, detection_source, preprocessing_source
from tenon.runtime.bundle.static_bounds import Instructions, StaticBounds, static_bounds
from tenon.runtime.bundle.text_entry import SOURCES as TEXT_SOURCES
from tenon.runtime.bundle.text_entry import text_description, text_header, text_source
from tenon.runtime.bundle.text_record import text_record, tokenizer_file
from tenon.runtime.bundle.weights import weights_text
from tenon.runtime.web import WebGpuForm, npm_package, page, text_page
from tenon.runtime.web.npm import tarball_name


@dataclass(frozen=True, eq=False, repr=False)
class Bundle:
    """A program, its generated code, and the compilation that they are made by.

    ``unit`` includes ``<name>.h`` and defines the entry point ``program.name``.  Machine code is generated on first
    use. ``more`` are the programs of further bindings; the memory and constants of ``program`` are those of all
    bindings.
    """

    program: Program
    unit: Unit
    compilation: Compilation
    origin: SourceRecord | None = None
    preprocessing: Mapping[str, Preprocessing] = field(default_factory=dict)
    heads: Heads | None = None
    more: tuple[Program, ...] = ()
    tuned: Tuned | None = None
    arithmetic: Literal["tflm", "litert", "onnx", "float"] = "float"
    expected: Callable[[], str] | None = None  # the digest of the answer to the fixed input, by the references
    decoding: Mapping[str, str] = field(default_factory=dict)  # how answers are decoded (``answers``)
    webgpu: WebGpuBeside | None = None
    placement: DevicePlacement | None = None
    text: TextModel | None = None  # of a language model

    def __post_init__(self) -> None:
        if identifier(self.name) != self.name:
            raise InternalError(f"'{self.name}' cannot name an entry point: use {identifier(self.name)}")

    @classmethod
    def of(cls, program: Program, compilation: Compilation) -> Bundle:
        """A program printed for a target, without an origin."""
        unit = find_backend(compilation.target.backend).program([program], f"{program.name}.h", gpu=compilation.gpu)
        return cls(program, unit, compilation)

    def __repr__(self) -> str:
        about = self.interface
        return (
            f"Bundle('{self.name}', {self.target.name}: {about.ports()}, {self.program.memory.constant:,} B of weights)"
        )

    def _repr_html_(self) -> str:
        return self.interface.html("Bundle")

    @property
    def target(self) -> Target:
        """The target that the code is compiled for."""
        return self.compilation.target

    @property
    def name(self) -> str:
        """The network's name: of the entry point, and the beginning of all file names."""
        return self.program.name

    @property
    def parts(self) -> tuple[Emit, ...]:
        """Default parts of a bundle for its target: all supported ones except the executable and the loop IR."""
        return usual_parts(self.target)

    def parts_with(self, emit: Sequence[Emit]) -> tuple[Emit, ...]:
        """The parts that ``emit`` asks for: parts of a bundle (``options.PARTS``) are all that is written, others are
        written in addition to the default ones; () if it is empty."""
        return (*self.parts, *emit) if emit and PARTS.isdisjoint(emit) else tuple(emit)

    @cached_property
    def source(self) -> str:
        """The text of the file with the entry points."""
        return self.unit.files[0].text

    @cached_property
    def answer(self) -> str:
        """The digest of the answer to the fixed input that every target gives; empty where it is not known."""
        return "" if self.expected is None else self.expected()

    @cached_property
    def header(self) -> str:
        """The text of ``<name>.h``: sizes and places of inputs and outputs, and the entry points."""
        top = banner(self.program, self.compilation, self.origin, more=self.more)
        return header(
            self.program,
            self.unit.entry_points,
            more=self.more,
            banner=top,
            preprocessing=self.preprocessing,
        )

    @cached_property
    def weights(self) -> bytes:
        """The constant region, in the byte order of the target."""
        return self.program.weights(self.target.byte_order)

    @cached_property
    def _stored_weights(self) -> Content:
        """``weights``, mapped where they are large."""
        if self.program.memory.constant <= IN_MEMORY or "weights" in vars(self):
            return self.weights
        return spooled(self.program.weight_pieces(self.target.byte_order))

    @cached_property
    def compiler(self) -> Compiler:
        """The C compiler that the options choose.  Raises ToolchainError if it is not there."""
        return find(self.compilation)

    @cached_property
    def object(self) -> bytes:
        """The machine code as an object file.  Raises ToolchainError if there is no compiler, or it refuses the
        source."""
        texts = self.unit.split() if self.target.format.joins_objects else [self.source]
        return link.object_of(self.compiler, self.target, self.name, texts, self.header)

    @cached_property
    def bounds(self) -> StaticBounds | None:
        """Stack and instructions of a run at most, on a target without operating system; None: not computed."""
        if not self.target.linker_script or not self.compiler.zig:
            return None
        programs = (self.program, *self.more)
        entries = {p.name: [step.function for step in own] for p, own in zip(programs, self.unit.steps, strict=True)}
        launches = (launch for own in self.unit.steps for launch in own)
        most = {each.function: n for each in launches if (n := run_time_iterations(each.call.kernel))}
        return static_bounds(self.compiler, self.target, self.unit.split(), self.header, entries, most)

    @cached_property
    def library_calls(self) -> LibraryCalls | None:
        """The functions of libraries that the object for a target without operating system calls; None for others."""
        return library_calls(self.object) if self.target.linker_script else None

    @property
    def stack(self) -> int | None:
        """The most bytes of stack that a run takes, on a target without operating system; None: it is not computed."""
        return self.bounds.stack if self.bounds else None

    @property
    def instructions(self) -> Instructions | None:
        """The most instructions that a run of the first binding executes; None: no bound is known."""
        return self.bounds.instructions.get(self.name) if self.bounds else None

    @cached_property
    def library(self) -> bytes:
        """The machine code as a shared library, which engines load.  Raises ToolchainError as ``object`` does."""
        threaded = self.program.threads > 1 or self.compilation.profile
        entries = tuple(program.name for program in (self.program, *self.more))
        text = layout(self.interface)
        return libraries.library(
            self.compiler, self.target, entries, self.object, text, threaded=threaded, calls=self.unit.libraries
        )

    @cached_property
    def executable(self) -> bytes:
        """A program with the weights inside.  Raises InputError for a target that has none, ToolchainError as
        ``object`` does."""
        check_parts(("exe",), self.target, zig=self.compiler.zig)
        threaded = self.program.threads > 1
        if self._answers_text or self._embeds_text:
            main = "text_main.c" if self._answers_text else "text_embed_main.c"
            return link.text_executable(
                self.compiler, self.target, *self._text_parts(), main=main, threaded=threaded and self._answers_text
            )
        outputs = tuple(map(tensor, self.program.outputs))
        classes = classes_source(outputs, other=self.heads is not None or bool(self.decoding))
        parts = self.name, self.object, self.header, self.weights, {**self._tables(), "classes_table": classes}
        images = any(port.name in self.preprocessing for port in self.program.inputs)
        return link.executable(self.compiler, self.target, *parts, threaded=threaded, takes_images=images)

    def _image_entry(self) -> dict[str, bytes]:
        """The C files with entry points for images."""
        images = [port.name for port in self.program.inputs if port.name in self.preprocessing]
        if len(images) != 1 or len(self.program.inputs) != 1:
            raise InputError(f"'{self.name}' does not take exactly one image: leave out --emit image")
        source = image_source(self.name, {file: link.runtime(file).decode() for file in SOURCES}, self._tables())
        return {f"{self.name}_image.h": image_header(self.name).encode(), f"{self.name}_image.c": source.encode()}

    @property
    def _answers_text(self) -> bool:
        return self.text is not None and self.text.kind == "decoder" and self.text.tokenizer is not None

    @property
    def _embeds_text(self) -> bool:
        encoder = self.text is not None and self.text.kind == "encoder" and self.text.tokenizer is not None
        return encoder and self._reads_tokens

    @property
    def _reads_tokens(self) -> bool:
        """Whether it is no encoder of speech or images, which is a part of a model that reads tokens."""
        return self.text is not None and self.text.ports.get("tokens") in {port.name for port in self.program.inputs}

    def _text_header(self) -> dict[str, bytes]:
        assert self.text is not None
        made = embedding_header if self._embeds_text else text_header
        return {f"{self.name}_text.h": made(self.interface, self.text).encode()}

    def _text_source(self) -> str:
        assert self.text is not None
        if self._embeds_text:
            runtime = {file: link.runtime(file).decode() for file in EMBEDDING_SOURCES}
            return embedding_source(self.interface, self.text, runtime)
        return text_source(self.interface, self.text, {file: link.runtime(file).decode() for file in TEXT_SOURCES})

    def _text_parts(self) -> tuple[str, bytes, dict[str, bytes], bytes, str, bytes]:
        """The files that programs of a language model are made of."""
        headers = {f"{self.name}.h": self.header.encode(), **self._text_header()}
        return self.name, self.object, headers, self.weights, self._text_source(), self.text_tables.content

    def _text_page(self) -> str:
        assert self.text is not None
        module = link.text_web_module(self.compiler, self.target, *self._text_parts())
        about = text_description(self.interface, self.text, chat=self.text_tables.chat)
        return text_page(about, self.text.generation, module)

    @cached_property
    def text_tables(self) -> CTables:
        """The tokenizer and the chat template of a language model as tables for C.  Raises UnsupportedError for a
        tokenizer that the functions in C lack, InputError for other networks."""
        if self.text is None or not (self._answers_text or self._embeds_text):
            raise InputError(f"'{self.name}' is no language model with a tokenizer: leave out --emit text")
        tables = c_tables(self.text, self.target.byte_order)
        if tables.problem:
            warn(f"{self.name}: programs have no conversations, only prompts: {tables.problem}")
        return tables

    def _text_entry(self) -> dict[str, bytes]:
        """The C files that go on with a text, and their tables."""
        tables = {tables_file(self.name): self.text_tables.content}
        return {**self._text_header(), f"{self.name}_text.c": self._text_source().encode(), **tables}

    def _tables(self) -> dict[str, str]:
        """C files that say how an image becomes an input, and outputs detections."""
        inputs, outputs = (tuple(map(tensor, ports)) for ports in (self.program.inputs, self.program.outputs))
        return {
            "preprocessing": preprocessing_source(inputs, self.preprocessing),
            "detection": detection_source(outputs, self.heads, self.compilation.labels),
        }

    @cached_property
    def web_module(self) -> bytes:
        """The WebAssembly module of pages and npm packages, including the weights."""
        parts = self.name, self.object, self.header, self.weights, self._tables()
        return link.web_module(self.compiler, self.target, *parts)

    def with_webgpu(self, other: Bundle | UnsupportedError, *, first: bool = True) -> Bundle:
        """The bundle, for WebAssembly, whose pages and npm packages also have the network compiled for WebGPU.

        ``other`` is the same model compiled with ``target="webgpu"``, or the error that this raised, which pages state
        as the reason why they do not use it.  ``first``: WebGPU is used where there is a device; otherwise only on
        request.  Raises InputError for bundles of other targets, and for one of another network.
        """
        check_parts(("html",), self.target)
        if isinstance(other, Bundle) and other.target.backend != "webgpu":
            raise InputError(f"target {other.target.name} is not WebGPU: compile '{other.name}' with target=\"webgpu\"")
        if isinstance(other, Bundle) and _ports(other) != _ports(self):
            raise InputError(f"'{other.name}' has other inputs or outputs than '{self.name}': compile the same model")
        return replace(self, webgpu=WebGpuBeside(other, first))

    @guarded
    def save(
        self,
        folder: str | Path,
        emit: Sequence[Emit] = (),
        progress: Callable[[str], None] = lambda stage: None,
        key: Key | None = None,
    ) -> Path:
        """Write the bundle and return its folder; a name that ends in ``.tenon`` is that of a single file.  Repeated
        calls write the same bytes.

        ``emit`` lists the parts: "c", "header", "object", "weights", "library", "exe", "ir" (the kernels as loop IR),
        "weights-text" (the weights as text to include),
        "html" (a page that runs the network in a browser), "npm" (an npm package), "image" (C entry
        points that take images and give detections), "text" (C entry points that go on with a text), or a form of
        ``packages.FORMS`` ("cmake", "arduino", ...); the manifest is always written.
        (): those in the options, else ``parts``.  An older
        bundle in the folder is replaced; on any error or interrupt the folder stays as it was.  Raises InputError
        if the folder holds something else or cannot be written, ToolchainError if compilation fails.
        ``progress`` is called with the name of a stage that takes minutes: building a C library for executables, which
        is kept.  ``key`` encrypts a ``.tenon`` file, so that what is written is never readable without it.
        """
        if Path(folder).suffix == SUFFIX:
            if emit:
                raise InputError(f"a {SUFFIX} file holds what is needed to run the network: leave out --emit")
            return save_container(folder, [self], key)
        if key is not None:
            raise InputError(f"{folder}: only {SUFFIX} files are encrypted: give the name of one")
        if "exe" in (emit or self.compilation.emit):
            self.note_c_library(progress)
        return write_folder(Path(folder), *self.files(emit))

    def note_c_library(self, progress: Callable[[str], None]) -> None:
        """Tell that an executable takes minutes, if it does."""
        if self.compiler.builds_c_library(self.target):
            progress(f"building the C library for {self.target.triple}, once; this can take minutes")

    def files(self, emit: Sequence[Emit] = ()) -> tuple[dict[str, Content], frozenset[str]]:
        """The files of a folder with these parts, and the names of those that are executed."""
        parts = self._parts(emit or self.compilation.emit)
        files = self._files(parts)
        files[FILE] = self.manifest(files, bool(COMPILED & parts)).text().encode()
        code = {executable_name(self.name, self.target), library_name(self.name, self.target) or ""}
        return files, frozenset(code)

    def loaded_files(self) -> dict[str, Content]:
        """The files that opening the bundle needs: manifest, library and weights.  Raises InputError for a target that
        loads no libraries."""
        files = self._files(self._parts(("library", "weights")))
        files[FILE] = self.manifest(files, compiled=True).text().encode()
        return files

    @property
    def interface(self) -> Manifest:
        """The manifest without files: inputs, outputs, memory and steps.  Nothing is compiled for it."""
        return self.manifest({}, compiled=False)

    def manifest(self, files: Mapping[str, Content], compiled: bool) -> Manifest:
        """The manifest of a bundle with these files; ``compiled``: with what machine code says of itself."""
        program, size = self.program, sizes(self.object) if compiled else None
        bound = self.instructions if compiled else None
        return Manifest(
            tenon=__version__,
            name=self.name,
            entry=self.name,
            origin=self.origin,
            options=dict(self.compilation.recorded),
            compiler=self.compiler.version if compiled else None,
            target=made_for(self.target),
            threads=program.threads,
            error=program.error,
            memory=memory_use(program.memory, self.stack if compiled else None),
            inputs=tuple(tensor(port, self.compilation.ranges) for port in program.inputs),
            outputs=tuple(map(tensor, program.outputs)),
            bindings=tuple(map(binding, (program, *self.more))) if self.more else (),
            preprocessing=dict(self.preprocessing),
            heads=self.heads,
            decoding=dict(self.decoding),
            labels=self.compilation.labels,
            language=text_record(self.text, self.name) if self.text else None,
            tuned=self.tuned,
            arithmetic=self.arithmetic,
            answer=self.answer if compiled else "",
            placement=self.placement,
            patches=PatchedLayers(**asdict(program.patches)) if program.patches else None,
            stored=StoredTypes(**asdict(program.stored)) if program.stored else None,
            kernels=dict(Counter(call.kernel.name for call in program.calls)),
            nodes=steps(program, bound.calls if bound else None),
            instructions=bound.total if bound else None,
            calls=self.library_calls if compiled else None,
            size=CodeSize(code=size.code, data=size.data) if size else None,
            files={name: file_record(content) for name, content in files.items()},
        )

    def _parts(self, emit: Sequence[Emit]) -> set[Emit]:
        if isinstance(emit, str):
            raise InputError(f"emit={emit!r}: it must be a list")
        check_parts(emit, self.target, zig="exe" not in emit or self.compiler.zig)
        check_programs(emit, self.interface.part_devices)
        programs: tuple[Emit, ...] = ("exe", "html") if self._answers_text else ("exe",) if self._embeds_text else ()
        check_fixed_sizes(emit, list(size_ranges(self.interface.inputs)), frozenset(programs))
        return set(emit or self.parts)

    def _files(self, parts: set[Emit]) -> dict[str, Content]:
        name, files = self.name, dict[str, Content]()
        if "c" in parts:
            files |= {file.name: file.text.encode() for file in self.unit.files}
        header = self._header(parts)
        if "header" in parts:
            files[f"{name}.h"] = header.encode()
        if "object" in parts:
            files[f"{name}.o"] = self.object
        if "weights" in parts:
            files[f"{name}.weights.bin"] = self._stored_weights
        if self.text and self.text.tokenizer:
            files[tokenizer_file(name)] = self.text.tokenizer.content
        if "weights-text" in parts:
            files[f"{name}.weights.txt"] = weights_text(self.weights)
        if "library" in parts:
            files[library_name(name, self.target) or name] = self.library
            tables = usual_tables(self.text, self.target.byte_order) if self._reads_tokens else None
            files |= {tables_file(name): tables} if tables else {}
        if "ir" in parts:
            programs = (self.program, *self.more)
            unit = find_backend("ir_text").program(programs, f"{name}.h")
            files |= {file.name: file.text.encode() for file in unit.files}
        if "exe" in parts:
            files[executable_name(name, self.target)] = self.executable
        if "image" in parts:
            files |= self._image_entry()
        if "text" in parts:
            files |= self._text_entry()
        files |= self._pages(parts)
        packaged = [form for part, form in FORMS.items() if part in parts]
        return {**files, **dict(form.written(self._contents(files, header)) for form in packaged)}

    def _pages(self, parts: set[Emit]) -> dict[str, bytes]:
        """The page and the npm package, as far as they are among the parts."""
        if not parts & {"html", "npm"}:
            return {}
        if self._answers_text and "html" in parts:
            return {f"{self.name}.html": self._text_page().encode()}
        beside, files = self.webgpu, dict[str, bytes]()
        about = description(self.interface, beside.description if beside else None)
        form = beside.form if beside else None
        if "html" in parts:
            files[f"{self.name}.html"] = page(about, self.web_module, form).encode()
        if "npm" in parts:
            files[tarball_name(self.name)] = npm_package(about, self.web_module, form)
        return files

    def _header(self, parts: set[Emit]) -> str:
        """The header of a bundle with these parts and of all its packages: with what machine code says of itself where
        anything is compiled."""
        if not COMPILED & parts:
            return self.header
        text = with_bounds(self.header, (self.program, *self.more), self.bounds)
        if self.library_calls is None:
            return text
        possible = possible_calls([file.text for file in self.unit.files])
        return with_library_calls(text, self.program, self.library_calls, possible)

    def _contents(self, files: Mapping[str, Content], header: str) -> Contents:
        """The content of packages; ``files`` are those of the bundle."""
        model = f" of {self.origin.file}" if self.origin else ""
        return Contents(
            name=self.name,
            version=__version__,
            about=harmless(f"Neural network {self.name}{model} for {self.target.name}"),
            header=header,
            source=self.source,
            weights=self.weights,
            manifest=lambda: self.manifest(files, compiled=True).text(),
            layout=lambda: layout(self.interface, quantised=True),
            digest=lambda: network_digest(self.interface, self.weights),
            target=self.target,
            weights_section=self.compilation.weights_section,
            archive=self._archive,
            library=(lambda: self.library) if library_name(self.name, self.target) else None,
        )

    def _archive(self) -> bytes:
        """The static library of the network and its weights."""
        network = self.object
        symbol, section = f"{self.name}_weights", self.compilation.weights_section
        weights = link.weights_object(self.compiler, self.target, self.weights, symbol, section)
        return self.compiler.archive({f"{self.name}.o": network, f"{self.name}_weights.o": weights})


@dataclass(frozen=True, eq=False)
class WebGpuBeside:
    """The network of a bundle for WebAssembly as it was compiled for WebGPU, or why it cannot be.  ``first``: WebGPU is
    preferred."""

    compiled: Bundle | UnsupportedError
    first: bool

    @property
    def description(self) -> dict[str, Any]:
        """For pages and packages."""
        form = self.compiled.program if isinstance(self.compiled, Bundle) else self.compiled
        return webgpu_description(form, first=self.first)

    @property
    def form(self) -> WebGpuForm | None:
        """The module and the weights; None if it cannot be compiled."""
        if isinstance(self.compiled, Bundle):
            return WebGpuForm(self.compiled.source, self.compiled.weights)
        return None


def _ports(bundle: Bundle) -> list[tuple[str, DType, tuple[int, ...]]]:
    ports = (*bundle.program.inputs, *bundle.program.outputs)
    return [(port.name, port.type.dtype, port.type.dims) for port in ports]


def save_container(path: str | Path, bundles: Sequence[Bundle], key: Key | None = None) -> Path:
    """Write the bundles, each for another target, to one ``.tenon`` file, encrypted if there is a ``key``; the first
    has precedence over equals."""
    targets = {bundle.target.name: bundle.loaded_files() for bundle in bundles}
    if len(targets) < len(bundles):
        raise InputError("a target is named twice")
    parts = parts_of(targets)
    with writing(path) as file:
        file.writelines(container_pieces(parts) if key is None else [_encrypted(parts, key)])
    return Path(path)


def _encrypted(parts: Mapping[str, Content], key: Key) -> bytes:
    return encrypted_container({name: bytes(content) for name, content in parts.items()}, read_key(key))
