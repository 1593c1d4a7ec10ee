"""COFF: Windows."""

from tenon.machine.object_formats.base import ObjectFormat, SharedLibrary


class Coff(ObjectFormat):
    windows = True
    compile_flags = ()
    math_library = ()
    constant_section = '.section .rdata,"dr"'

    def library_name(self, name: str) -> str:
        return f"{name}.dll"

    def executable_name(self, name: str) -> str:
        return f"{name}.exe"

    def shared_library(self, name: str, abi: int) -> SharedLibrary:
        return SharedLibrary(f"{name}.dll", f"{name}.dll", f"lib{name}.dll.a")


FORMAT = Coff()
