"""Object formats: what files with machine code are called, and what compilers and linkers ask of their format.

A module of this package that has ``FORMAT`` describes one, and its name is that which a target's row gives.
"""

from tenon.machine.object_formats.base import ObjectFormat, SharedLibrary, find

__all__ = ["ObjectFormat", "SharedLibrary", "find"]
