"""The interface of an instruction set: the operations that it adds to the loop IR, and their C.

A module of this package is one instruction set, or operations that several have.  It may define

    PRIMITIVES   rows of ``kernel_ir.loops.OPS``: operands, the type of the result, the meaning in loop IR
    PORTABLE     the C of an operation for any compiler
    FORMS        the C of an operation where a condition of the preprocessor holds
    DEVICES      the body of an operation's function in a language of devices, by the name of the language
    ASSEMBLY     the C of instructions over memory (``kernel_ir.loops.Instruction``)
    DEVICE_INSTRUCTIONS  the function of an instruction over memory in a language of devices, by the language's name

and is found by scanning the folder; whether a machine has an operation is said by its row in ``targets/``.

Bodies are templates of ``str.format``: V is the vector, I its signed integer twin, U the unsigned one, E the element,
N the number of lanes, S the suffix of builtins, W a vector of i64, Q one of four i32, T a vector of a table of bytes, M
its bytes and P how many vectors of operands these are, ``whole`` the first float that has no fraction, ``magnitude``
the mask of a float without its sign.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenon.network.graph.dtype import DType

PRODUCT_ALONE = '{V} r = a * b;\n  __asm__("" : "+%s"(r));\n  return r;'
"""A product of floats in a register of that class that the compiler cannot contract into an FMA."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A row of the operation table: how many arguments, and what the result's type follows from.

    ``result`` is "same" (as the first argument), "mask" (signed integers of that width), "arg1" (as the second),
    "scalar" (one lane of the first) or "given" (by the caller that builds the operation).  ``products`` are the
    multiply-adds of a lane, where there are several.  ``meaning`` builds the same of other operations: what has no
    text for the operation prints or computes that.  ``computes``: it takes no floats of 16 bits, which are bits in C.
    """

    arity: int
    result: str = "same"
    products: int = 0
    meaning: Callable[..., Any] | None = None
    computes: bool = True


@dataclass(frozen=True)
class ProductUnit:
    """Products that a machine adds up by one operation of the loop IR.

    ``shape`` is (positions, channels, inputs): how many numbers of either operand make one element of the result, or a
    block of results.  ``time`` is in multiply-adds of a vector of f32, and ``widening`` that of making a vector of
    either operand what the multiplier takes; ``narrow``: no weight may be -128.
    """

    operation: str
    x: DType
    weights: DType
    sums: DType
    shape: tuple[int, int, int]
    time: float = 1.0
    narrow: bool = False
    widening: float = 0.0


@dataclass(frozen=True)
class TableUnit:
    """Bytes that a machine looks up in a table of 256, in vectors of so many ``entries``."""

    operation: str
    entries: int


@dataclass(frozen=True)
class Form:
    """The body of an operation's function where the preprocessor's ``condition`` holds.

    It is for ``lanes`` lanes (0: for any number above one), and for elements of ``dtype`` if that is given.
    """

    operation: str
    lanes: int
    condition: str
    body: str
    dtype: DType | None = None

    def fits(self, dtype: DType, lanes: int) -> bool:
        """Whether it is for operands of that type."""
        every = self.lanes == 0 and lanes > 1
        return (every or self.lanes == lanes) and self.dtype in (None, dtype)


@dataclass(frozen=True)
class Portable:
    """The C of an operation for any compiler: its parameters, and a body for vectors and one for single elements.

    An empty body is printed from the operation's meaning.  ``gives`` is the type of the result.  ``helpers`` are
    functions that bodies call, (name, text) by the word that stands for them.  ``first_of_four``: single elements have
    the forms of four lanes, as the first lane.  ``calls``: bodies call functions that some forms have no use for.
    """

    takes: str
    vector: str = ""
    scalar: str = ""
    gives: str = "{V}"
    helpers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    first_of_four: bool = False
    calls: bool = False


@dataclass(frozen=True)
class Assembly:
    """The C of an instruction over memory, where the preprocessor's ``condition`` holds.

    ``text`` gives the lines, from pointers to the first weight and the first input, those to other operands in memory
    and the names of the variables that are added to, and the instruction's numbers; ``fits`` says for which numbers
    there is one.  ``test``: whether the machine can do it is known when it runs, by a call of this helper function,
    whose text is ``asks``; the instruction's body is printed beside, for where it cannot.
    """

    condition: str
    text: Callable[[str, str, Sequence[str], Sequence[int]], list[str]]
    fits: Callable[[Sequence[int]], bool] = lambda numbers: True
    test: str = ""
    asks: str = ""


_ASKED_ONCE = """\
static int NAME_asked; /* ABOUT */
static inline int NAME(void) {
  int answer = __atomic_load_n(&NAME_asked, __ATOMIC_RELAXED);
  if (!answer) {
    int own = -1;
BODY
    /* of threads that ask at the same time, one decides for all */
    if (__atomic_compare_exchange_n(&NAME_asked, &answer, own, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) answer = own;
  }
  return answer > 0;
}"""


def asked_once(name: str, about: str, body: str) -> str:
    """The C of a function that says whether a machine has something, which its first call finds out.

    The statements ``body`` set ``own`` to 1 if so, and leave it -1 if not; ``about`` says what both numbers mean.
    """
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return _ASKED_ONCE.replace("NAME", name).replace("ABOUT", about).replace("BODY", indented)


def in_first_lane(body: str) -> str:
    """A body for four lanes as one for a single element.  clang 22 vectorises sums of shifted bytes itself, on x86 to
    wrong ones."""
    of_four = re.sub(r"\b(acc|a|b)\b", r"\1_4", body).replace("return ", "const four r = ")
    unsigned = "  typedef {U} ufour __attribute__((vector_size(16)));\n" if "{U}" in body else ""
    of_four = of_four.replace("{V}", "four").replace("{U}", "ufour").replace("{N}", "4")
    return (
        f"typedef {{V}} four __attribute__((vector_size(16)));\n{unsigned}"
        "  four acc_4 = {{ acc }}, a_4 = {{ a }}, b_4 = {{ b }};\n"
        f"  {of_four.strip()}\n  return r[0];"
    )
