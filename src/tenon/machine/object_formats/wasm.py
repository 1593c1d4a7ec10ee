"""WebAssembly."""

from tenon.machine.object_formats.base import ObjectFormat


class Wasm(ObjectFormat):
    module = True
    constant_section = '.section .rodata.{symbol},"",@'
    needs_symbol_size = True

    def library_name(self, name: str) -> str:
        return f"{name}.wasm"


FORMAT = Wasm()
