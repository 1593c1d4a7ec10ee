"""Mach-O: macOS and iOS."""

from tenon.machine.object_formats.base import ObjectFormat, SharedLibrary


class MachO(ObjectFormat):
    remove_unused = "-Wl,-dead_strip"
    symbol_prefix = "_"
    constant_section = ".section __TEXT,__const"

    def library_name(self, name: str) -> str:
        return f"lib{name}.dylib"

    def shared_library(self, name: str, abi: int) -> SharedLibrary:
        file = f"lib{name}.{abi}.dylib"
        return SharedLibrary(file, file, f"lib{name}.dylib")


FORMAT = MachO()
