"""The files of a bundle that packages are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tenon.errors import InputError
from tenon.machine.targets import Target
from tenon.runtime.bundle.compiler_flags import flags
from tenon.runtime.bundle.weights import TEXT_LIMIT, weights_text


@dataclass(frozen=True)
class Contents:
    """A compiled network.  ``archive``, ``library`` and ``manifest`` compile it when they are called.

    ``library`` is None where the target has no shared libraries.  ``version`` is that of packages, ``about`` a line
    that describes the network.  ``layout`` is that of its memory (``bundle.layout``), ``digest`` that of
    ``bundle.network_digest``.  ``weights_section`` is the
    section of the array of weights; None: the compiler's choice.
    """

    name: str
    version: str
    about: str
    header: str
    source: str
    weights: bytes
    manifest: Callable[[], str]
    layout: Callable[[], str]
    digest: Callable[[], bytes]
    target: Target
    archive: Callable[[], bytes]
    library: Callable[[], bytes] | None = None
    weights_section: str | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's flags that choose the target's instructions."""
        return () if self.target.backend == "c.strict" else flags(self.target)

    @property
    def application_flags(self) -> tuple[str, ...]:
        """These without those that choose how functions are called, which the whole application shares."""
        return tuple(flag for flag in self.flags if not flag.startswith(("-mfloat-abi", "-mabi")))

    @cached_property
    def weights_header(self) -> str:
        """``<name>_weights.h``: the weights as an array, and the network with them."""
        name, prefix = self.name, self.name.upper()
        return f"""\
#ifndef {prefix}_WEIGHTS_H
#define {prefix}_WEIGHTS_H

#include "{name}.h"

{self.weights_declaration}
#endif
"""

    @property
    def weights_declaration(self) -> str:
        """The declarations in ``weights_header``."""
        name = self.name
        return f"""\
#ifdef __cplusplus
extern "C" {{
#endif
/* The constant region: pass it as constantWeight. */
extern const uint8_t {name}_weights[{max(1, len(self.weights))}];
#ifdef __cplusplus
}}
#endif

/* Runs the network with these weights. */
static inline int {name}_run(uint8_t *mutableWeight, uint8_t *activations) {{
  return {name}({name}_weights, mutableWeight, activations);
}}
"""

    @cached_property
    def weights_definition(self) -> str:
        """The array.  Raises InputError where it would be too long for a compiler."""
        if len(self.weights) > TEXT_LIMIT:
            raise InputError(
                f"{len(self.weights):,} bytes of weights are too many for C text, of which compilers take "
                f"{TEXT_LIMIT:,}: use a form with compiled weights (--emit a, cmake or tar), or --max-weights"
            )
        values = weights_text(self.weights).decode() or "0\n"
        section = f'__attribute__((section("{self.weights_section}"))) ' if self.weights_section else ""
        array = f"const uint8_t {self.name}_weights[{max(1, len(self.weights))}]"
        return f"TENON_MEM_ALIGN(64) {section}{array} = {{\n{values}}};\n"

    @property
    def weights_source(self) -> str:
        """``<name>_weights.c``."""
        return f'#include "{self.name}_weights.h"\n\n{self.weights_definition}'

    def headers(self, folder: str = "") -> dict[str, bytes]:
        """The two headers, by their paths."""
        files = {f"{self.name}.h": self.header, f"{self.name}_weights.h": self.weights_header}
        return {folder + path: text.encode() for path, text in files.items()}

    def sources(self, folder: str = "") -> dict[str, bytes]:
        """The two C files, by their paths."""
        files = {f"{self.name}.c": self.source, f"{self.name}_weights.c": self.weights_source}
        return {folder + path: text.encode() for path, text in files.items()}

    def filled(self, template: str, **more: str) -> bytes:
        """A template with @NAME@, @PREFIX@, @VERSION@, @ABOUT@, @FLAGS@ and ``more`` replaced."""
        values = {
            "NAME": self.name,
            "PREFIX": self.name.upper(),
            "VERSION": self.version,
            "ABOUT": self.about,
            "FLAGS": " ".join(self.flags),
            **more,
        }
        for key, value in values.items():
            template = template.replace(f"@{key}@", value)
        return template.encode()
