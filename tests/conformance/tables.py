"""The operator table of the documentation, from the outcomes of the conformance cases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from conformance.cases import Conformance
from conformance.exact import EXACT
from conformance.harness import PASSED, Outcome
from conformance.lowering import TARGETS
from tenon.formats.decompositions.onnx.compose import COMPOSED
from tenon.formats.decompositions.strings.strings import STRINGS
from tenon.formats.importers.onnx.control import CONTROL
from tenon.formats.importers.onnx.gradient import RULES
from tenon.network import ops

HEAD = """\
# Operators

Written by `scripts/conformance --docs docs/reference/operators.md`; do not edit.

Every ONNX operator: the versions of the operator set that changed it, the element types of the inputs of the cases
that pass, the targets, and how many of ONNX's own conformance cases of it pass as compiled code. Those run on the
machine that wrote this page; a target is listed if up to three of the smallest of them are planned, their kernels
proved and printed as C for it (all: those of [targets.md](targets.md); untried: it is supported, and no case can show
it; none: it is refused, with an error that says so). Operators that ONNX defines by others are expanded into them.
Element types narrower than a byte have a byte for each element in memory.

A shape must be known when compiling. Inputs that a shape depends on (the second input of Reshape, the axes of a
reduction) must be initializers, computed from such, or fixed with `--value`. Where an extent depends on data (NonZero,
Compress, Unique, NonMaxSuppression), the output has the largest extent that is possible and zeros past what was found;
the true extent is delivered beside it, as the output `NAME.extent`, and `Engine.run` returns the array cut to it.

A tensor of strings of shape S is a u8 tensor of shape S + [W]: UTF-8, with zeros behind the end of each string. W is 64
for an input X unless `--shape X.width=N` binds it; a longer string is an error. Of constants and results it follows
from what they hold. `Engine.run` takes and returns NumPy arrays of strings. Changing the case covers characters of one
and two bytes (ASCII, Latin, Greek, Cyrillic, Armenian) whose other case has as many bytes; white space is that of
ASCII; a RegexFullMatch is a table of the states of its pattern, at most 2000, in RE2's syntax without classes of
Unicode. StringSplit has as many parts as W bytes can hold.

An ImageDecoder reads uncompressed images whose size the model declares: a BMP of 24 bits from the bottom up, or a
binary PNM with a header as "P6\\nWIDTH HEIGHT\\n255\\n" (P5 for Grayscale), distinguished by the number of bytes; where
the header is not that of such an image, the output is all zeros. All other images are refused when importing.

Random numbers are drawn when compiling, by a generator that counts (Philox 4x64), from the attribute `seed` or else
from the node's name: a bundle keeps no state and has the same numbers in every run. For others in every run, cut the
model behind the node, so that they are an input.

Gradient is written out as nodes, through {gradients}.

The elements of a sequence X are inputs or outputs of their own, `X[0]`, `X[1]` and so on; there are as many as shapes
are given for. An optional input without a shape is absent. A Loop ends after a number of iterations or by a
condition, both of which may be computed at run time. What it stacks has its largest extent, which must be known when
compiling, and its true one beside it; so is a sequence to which each iteration appends one element. A state may change
its extents from iteration to iteration, up to largest ones that follow from the number of iterations or that the user
states. Other loops that change the lengths of sequences are unrolled: the number of their iterations must be known. Of
an If whose condition is not known, one of both branches runs; where these differ in extents, the result has the larger
ones and its true ones beside it.

Results are compared at ONNX's own tolerances, and at no less than two units in the last place for floats of 16 bits,
whose expected values hold the roundings of every intermediate result. Two cases pass against expectations that are
computed anew, by NumPy in double precision, and compared at the same tolerances
({recomputed}): those that come with them hold NumPy's
rounding noise in single precision, 2e-7 where the tolerance is 1e-7.

"""

_TYPES = {
    1: "f32",
    2: "u8",
    3: "i8",
    4: "u16",
    5: "i16",
    6: "i32",
    7: "i64",
    8: "string",
    9: "bool",
    10: "f16",
    11: "f64",
    12: "u32",
    13: "u64",
    16: "bf16",
    17: "f8e4m3fn",
    18: "f8e4m3fnuz",
    19: "f8e5m2",
    20: "f8e5m2fnuz",
    21: "u4",
    22: "i4",
    23: "f4e2m1",
    24: "f8e8m0",
    25: "u2",
    26: "i2",
}


def document(cases: Sequence[Conformance], outcomes: Sequence[Outcome], lowered: Mapping[str, tuple[str, ...]]) -> str:
    """The whole page; ``lowered`` are the targets for which an operator compiles."""
    types: dict[str, set[str]] = defaultdict(set)
    passed, total = Counter[str](), Counter[str]()
    by_name = {(o.name, o.kind): o for o in outcomes}
    for case in cases:
        total[case.operator] += 1
        if by_name[case.name, case.kind].status == PASSED:
            passed[case.operator] += 1
            types[case.operator] |= _input_types(case)
    words = {"gradients": ", ".join(RULES), "recomputed": " and ".join(EXACT)}
    head = HEAD.format(**words)
    lines = ["| operator | versions | element types | targets | cases | pass |", "|---|---|---|---|--:|--:|"]
    for name, versions in _versions().items():
        held = ", ".join(sorted(types[name]))
        able = _targets(name, lowered.get(name, ()))
        lines.append(f"| {name} | {versions} | {held} | {able} | {total[name]} | {passed[name]} |")
    count = Counter(o.status for o in outcomes)
    last = f"\n{len(outcomes)} cases, {count[PASSED]} pass."
    return head + "\n".join(lines) + "\n" + last + "\n"


def _targets(operator: str, names: tuple[str, ...]) -> str:
    if names:
        return "all" if set(names) == set(TARGETS) else ", ".join(names)
    supported = {*ops.registry(), *COMPOSED, *CONTROL, *STRINGS, "Gradient"}
    return "untried" if operator in supported else "none"


def _input_types(case: Conformance) -> set[str]:
    import onnx

    graph = onnx.ModelProto.FromString(case.model).graph
    kinds: Iterable[int] = (v.type.tensor_type.elem_type for v in graph.input)
    return {_TYPES[kind] for kind in kinds if kind in _TYPES}


def _versions() -> dict[str, str]:
    """Operators by name, with the versions in which their definition changed."""
    from onnx.defs import get_all_schemas_with_history

    versions: dict[str, list[int]] = defaultdict(list)
    for schema in get_all_schemas_with_history():
        if schema.domain in ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"):
            versions[schema.name].append(schema.since_version)
    return {name: ", ".join(map(str, sorted(set(v)))) for name, v in sorted(versions.items())}
