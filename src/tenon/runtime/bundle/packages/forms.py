"""The package forms by the names that ``--emit`` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenon.formats.wire.reproducible_archives import tar_archive, zip_archive
from tenon.runtime.bundle.packages.cmake import cmake
from tenon.runtime.bundle.packages.contents import Contents
from tenon.runtime.bundle.packages.embedded import arduino, cmsis, espidf, platformio, zephyr
from tenon.runtime.bundle.packages.mace import mace
from tenon.runtime.bundle.packages.micro import micro
from tenon.runtime.bundle.packages.mobile import android, swift
from tenon.runtime.bundle.packages.serial import serial
from tenon.runtime.bundle.packages.single import single_header, single_source
from tenon.runtime.bundle.packages.tar import tar


@dataclass(frozen=True)
class PackageForm:
    """A package form: the name of its file (with @NAME@ and @VERSION@), and the function that makes its content."""

    file: str
    content: Callable[[Contents], bytes]

    def written(self, contents: Contents) -> tuple[str, bytes]:
        """The name of the file, and its content.  Raises InputError and ToolchainError."""
        return contents.filled(self.file).decode(), self.content(contents)


def _zipped(files: Callable[[Contents], dict[str, bytes]]) -> Callable[[Contents], bytes]:
    return lambda contents: zip_archive(files(contents))


def _tarred(files: Callable[[Contents], dict[str, bytes]]) -> Callable[[Contents], bytes]:
    return lambda contents: tar_archive(files(contents))


FORMS = {
    "archive": PackageForm("lib@NAME@.a", lambda contents: contents.archive()),
    "single-c": PackageForm("@NAME@_single.c", lambda contents: single_source(contents).encode()),
    "single-header": PackageForm("@NAME@_single.h", lambda contents: single_header(contents).encode()),
    "cmake": PackageForm("@NAME@-@VERSION@-cmake.tar.gz", _tarred(cmake)),
    "arduino": PackageForm("@NAME@-arduino.zip", _zipped(arduino)),
    "platformio": PackageForm("@NAME@-platformio.tar.gz", _tarred(platformio)),
    "espidf": PackageForm("@NAME@-espidf.zip", _zipped(espidf)),
    "zephyr": PackageForm("@NAME@-zephyr.zip", _zipped(zephyr)),
    "cmsis": PackageForm("Tenon.@NAME@.@VERSION@.pack", _zipped(cmsis)),
    "swift": PackageForm("@NAME@-swift.zip", _zipped(swift)),
    "android": PackageForm("@NAME@-android.zip", _zipped(android)),
    "mace": PackageForm("@NAME@_mace.tar.gz", _tarred(mace)),
    "micro": PackageForm("@NAME@_micro.tar.gz", _tarred(micro)),
    "serial": PackageForm("@NAME@_serial.c", lambda contents: serial(contents).encode()),
    "tar": PackageForm("lib@NAME@.tar.gz", _tarred(tar)),
}
"""By the names of ``options.Emit``."""
