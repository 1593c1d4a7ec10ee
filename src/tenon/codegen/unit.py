"""A whole program as one C file: its kernels, and the entry point that calls them."""

from __future__ import annotations

from tenon.codegen.bounds import prove
from tenon.codegen.c import C
from tenon.plan.program import Call, Program, Region


def source(program: Program, header: str, *, profile: bool = False) -> str:
    """The text of ``<name>.c``; ``profile`` adds the entry point ``<name>_profile``.

    Every kernel is proved first; raises OutOfRangeError if a proof fails.
    """
    unit = C()
    unit.taken.add(program.name)
    names: dict[int, str] = {}
    for call in program.calls:
        if id(call.kernel) not in names:
            prove(call.kernel)
            names[id(call.kernel)] = unit.kernel(call.kernel)
    body = [_call(unit, names[id(call.kernel)], call) for call in program.calls]
    used = {place.region for call in program.calls for place in call.args}
    unused = [f"  (void){region};" for region in Region if region not in used]
    parameters = ", ".join(f"uint8_t *{region}" for region in Region)
    return "\n".join(
        [
            f'#include "{header}"\n',
            unit.text(),
            f"int {program.name}({parameters}) {{",
            *unused,
            *body,
            "  return 0;",
            "}",
            *(profiled(program.name, body, unused) if profile else ()),
            "",
        ]
    )


def profiled(name: str, body: list[str], unused: list[str]) -> list[str]:
    """The entry point that reads a clock of the caller's choice around every call."""
    parameters = ", ".join(f"uint8_t *{region}" for region in Region)
    stamps = [line for i, call in enumerate(body, 1) for line in (call, f"  ticks[{i}] = clock();")]
    head = f"int {name}_profile({parameters}, uint64_t (*clock)(void), uint64_t *ticks) {{"
    return ["", head, *unused, "  ticks[0] = clock();", *stamps, "  return 0;", "}"]


def _call(unit: C, name: str, call: Call) -> str:
    args = ", ".join(
        f"({unit.pointer_type(buffer)})({place.region} + {place.offset})"
        for buffer, place in zip(call.kernel.params, call.args, strict=True)
    )
    return f"  {name}({args});"
