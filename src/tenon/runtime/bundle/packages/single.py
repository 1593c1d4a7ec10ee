"""A network as one file of C: with everything inside, or as a header that has the code on request."""

from __future__ import annotations

from tenon.runtime.bundle.packages.contents import Contents


def single_source(contents: Contents) -> str:
    """``<name>_single.c``: declarations, code and weights."""
    return _joined(contents, contents.header + "\n" + contents.weights_declaration)


def single_header(contents: Contents) -> str:
    """``<name>_single.h``: declarations, and where <NAME>_IMPLEMENTATION is defined code and weights as well."""
    prefix = contents.name.upper()
    return f"""\
/* {contents.name} in one header.  Include it where the network is used, and in one file of C define
   {prefix}_IMPLEMENTATION before. */
#ifndef {prefix}_SINGLE_H
#define {prefix}_SINGLE_H
{contents.header}
{contents.weights_declaration}
#endif /* {prefix}_SINGLE_H */

#ifdef {prefix}_IMPLEMENTATION
#ifndef {prefix}_IMPLEMENTED
#define {prefix}_IMPLEMENTED
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#endif
{_joined(contents, "")}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
#endif
#endif
"""


def _joined(contents: Contents, declarations: str) -> str:
    own = f'#include "{contents.name}.h"\n'
    before, include, code = contents.source.partition(own)
    assert include, "the C file includes its header"
    return f"{before}{declarations}{code}\n{contents.weights_definition}"
