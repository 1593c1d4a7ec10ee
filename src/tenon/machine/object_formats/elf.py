"""ELF: Linux, Android and boards without operating system."""

from tenon.machine.object_formats.base import ObjectFormat, SharedLibrary


class Elf(ObjectFormat):
    joins_objects = True
    names_sections = True
    portable_library = True
    link_flags = ("-Wl,--build-id=none",)
    direct_calls = ("-fno-semantic-interposition",)
    system_libraries = ("pthread", "dl")
    constant_section = '.section .rodata.{symbol},"a"'

    def library_name(self, name: str) -> str:
        return f"lib{name}.so"

    def shared_library(self, name: str, abi: int) -> SharedLibrary:
        file = f"lib{name}.so.{abi}"
        return SharedLibrary(file, file, f"lib{name}.so")


FORMAT = Elf()
