"""libtenon's functions that open and update files, through ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path

OK, ARGUMENT, NOT_FOUND, WRONG_SIZE, DAMAGED, SYSTEM, WRONG_KEY, NOT_SIGNED = 0, 2, 3, 4, 5, 8, 16, 17
"""Members of TenonStatus."""

KeyFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint8 * 32))
Transform = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Options(ctypes.Structure):
    """TenonOpenOptions."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("skip_checksums", ctypes.c_int32),
        ("never_compile", ctypes.c_int32),
        ("target", ctypes.c_char_p),
        ("model_name", ctypes.c_char_p),
        ("weights", ctypes.c_char_p),
        ("shapes", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("compile_seconds", ctypes.c_int32),
        ("key", ctypes.c_char_p),
        ("key_file", ctypes.c_char_p),
        ("key_function", KeyFunction),
        ("key_context", ctypes.c_void_p),
        ("transform", Transform),
        ("transform_context", ctypes.c_void_p),
        ("weights_data", ctypes.c_void_p),
        ("weights_bytes", ctypes.c_size_t),
        ("public_key", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("minimum_version", ctypes.c_int64),
    )


class Api:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = ctypes.CDLL(str(folder / "sdk" / "lib" / "libtenon.so"))
        self.library.tenon_last_error.restype = ctypes.c_char_p

    def open(self, name: str, **fields: object) -> tuple[int, str]:
        """The status of opening a file, and the text of the error; the bundle is closed."""
        options = Options(**{"struct_size": ctypes.sizeof(Options), "never_compile": 1, **fields})
        bundle = ctypes.c_void_p()
        status = self.library.tenon_bundle_open(
            str(self.folder / name).encode(), ctypes.byref(options), ctypes.byref(bundle)
        )
        if status == OK:
            self.library.tenon_bundle_close(bundle)
            return OK, ""
        return int(status), self.library.tenon_last_error().decode()

    def patch(self, old: Path, delta: Path, new: Path, public_key: bytes | None = None) -> tuple[int, str]:
        """The status of tenon_patch, and the text of the error."""
        status = self.library.tenon_patch(*(str(path).encode() for path in (old, delta, new)), public_key)
        return int(status), self.library.tenon_last_error().decode() if status else ""
