"""GLSL with cooperative matrices (GL_NV_cooperative_matrix).  Kernels that use them are printed twice: for devices with
them and without."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.codegen.address import Address
from tenon.machine.codegen.backend import KernelLaunch
from tenon.machine.codegen.vulkan.dialect import Glsl, place_of, program
from tenon.machine.kernel_ir.loops import Alloc, Buffer, Expr, Instruction, Kernel, Load
from tenon.machine.kernel_ir.walk import statements
from tenon.machine.kernel_ir.work_items import WorkItems

MACRO = "COOPERATIVE_MATRICES"
CLEAR, PRODUCT, STORE = "matrix_clear", "matrix_f16", "matrix_store"
"""The instructions (``isa.cooperative_matrices``)."""
_EXTENSIONS = f"""\
#ifdef {MACRO}
#extension GL_NV_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model
#endif
"""
_FACTOR, _SUMS = (f"fcoopmatNV<{bits}, gl_ScopeSubgroup, 16, 16>" for bits in (16, 32))


class MatrixGlsl(Glsl):
    """Kernels whose sums are cooperative matrices.  ``fragments`` are these sums, of the kernel being printed."""

    def __init__(self) -> None:
        super().__init__()
        self.fragments = frozenset[Buffer]()

    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        self.fragments = frozenset(b for s in instructions(k) for b, _ in s.operands if b.space == "register")
        return super().kernel(k, slices)

    def on_alloc(self, s: Alloc) -> None:
        super().on_alloc(s)
        if s.buffer in self.fragments:
            line = self.f.scopes[-1].lines[-1]
            line.text = line.text.replace(self.type(s.buffer.type), _SUMS)

    def value(self, e: Expr, whole: bool = True) -> str:
        """No thread knows which elements it has."""
        if isinstance(e, Load) and e.buffer in self.fragments:
            raise TypeError(f"{e.buffer.name} is read outside of the instructions of matrices")
        return super().value(e, whole)

    def on_instruction(self, s: Instruction) -> None:
        if s.name not in (CLEAR, PRODUCT, STORE):
            super().on_instruction(s)
            return
        sums = [self.register(buffer, at) for buffer, at in s.operands if buffer in self.fragments]
        places = [self.place(buffer, at) for buffer, at in s.operands if buffer not in self.fragments]
        cells = {self.cell(buffer, self.register(buffer, at)) for buffer, at in s.operands if buffer in self.fragments}
        lines = {CLEAR: _clear, PRODUCT: _product, STORE: _store}[s.name](places, sums, s.numbers)
        taken = self.f.taken | cells
        for line in lines:
            self.f.taken |= taken
            self.line(line)


def _clear(places: Sequence[Address], sums: Sequence[str], numbers: Sequence[int]) -> list[str]:
    return [f"{each} = {_SUMS}(0.0f);" for each in sums]


def _product(places: Sequence[Address], sums: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """The columns of the right factor lie one behind the other."""
    down, across, left_row, right_row = numbers
    rows, columns = [f"left_{i}" for i in range(down)], [f"right_{j}" for j in range(across)]
    products = [
        f"{sums[i * across + j]} = coopMatMulAddNV({row}, {column}, {sums[i * across + j]});"
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]
    return [
        "{",
        f"  {_FACTOR} {', '.join([*rows, *columns])};",
        *(f"  {_loaded(row, places[0], 16 * i, left_row, 'false')}" for i, row in enumerate(rows)),
        *(f"  {_loaded(column, places[1], 16 * j, right_row, 'true')}" for j, column in enumerate(columns)),
        *(f"  {line}" for line in products),
        "}",
    ]


def _loaded(matrix: str, place: Address, row: int, stride: int, by_columns: str) -> str:
    """A factor, of an array of four floats of 16 bits an element."""
    first = f"uint({place_of(place)} + {row * stride}) >> 2"
    return f"coopMatLoadNV({matrix}, {place.array}, {first}, {stride // 4}, {by_columns});"


def _store(places: Sequence[Address], sums: Sequence[str], numbers: Sequence[int]) -> list[str]:
    (place,), (stride,) = places, numbers
    return [
        f"coopMatStoreNV({each}, {place.array}, uint({place_of(place)} + {16 * j}), {stride}, false);"
        for j, each in enumerate(sums)
    ]


def instructions(k: Kernel) -> list[Instruction]:
    """The instructions on matrices in a kernel."""
    return [s for s in statements(k.body) if isinstance(s, Instruction) and s.name in (CLEAR, PRODUCT, STORE)]


class GlslPrograms(Glsl):
    """A program, and for devices with cooperative matrices another of the kernels that use them.

    ``others`` are the entries of the latter, by their numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.matrices = MatrixGlsl()
        self.others: dict[int, str] = {}
        self.second_form = ""  # the second form of the kernel that was printed last; empty if it has none

    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        self.second_form = ""
        if instructions(k):
            self.matrices.regions, self.matrices.aligned = dict(self.regions), self.aligned
            self.second_form = self.matrices.kernel(k, slices)
        return super().kernel(k, slices)

    def entry(self, number: int, function: str, step: KernelLaunch) -> str:
        if self.second_form:
            self.others[number] = self.matrices.entry(number, self.second_form, step)
        return super().entry(number, function, step)

    def program(self, entries: Sequence[str]) -> str:
        if not self.others:
            return super().program(entries)
        text = _either(self.matrices.listing(self.others.values()), self.listing(entries))
        calls = ("\n".join(f"  run_{i}();" for i in numbers) for numbers in (self.others, range(len(entries))))
        return program(text, _either(*calls), _EXTENSIONS)


def _either(other: str, usual: str) -> str:
    return f"#ifdef {MACRO}\n{other}\n#else\n{usual}\n#endif"
