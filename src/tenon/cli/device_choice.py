"""The device that a command was told to run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenon.errors import InputError

if TYPE_CHECKING:
    from tenon.tools.devices import RemoteRunner
    from tenon.tools.devices.remote import Connection
    from tenon.tools.devices.serial_board import SerialBoard


@dataclass(frozen=True)
class DeviceChoice:
    """``--device`` and ``--devices``; ``name`` is None for this machine."""

    name: str | None = None
    file: Path | None = None

    @contextmanager
    def connected(self, options: Mapping[str, Any]) -> Iterator[tuple[Connection | SerialBoard | None, dict[str, Any]]]:
        """A connection to the device, None if there is none to use, and ``options`` with the device's target."""
        if self.name is not None and self.name.startswith(SERIAL):
            yield self._serial_board(), dict(options)
            return
        runner, chosen = self.runner(options)
        if runner is None:
            yield None, chosen
            return
        with runner.connected() as connection:
            yield connection, chosen

    def runner(self, options: Mapping[str, Any]) -> tuple[RemoteRunner | None, dict[str, Any]]:
        """The device, None for this machine, and ``options`` with the device's target.  Raises InputError for a board
        at a serial port, to which no programs can be pushed."""
        if self.name is None:
            return None, dict(options)
        if self.name.startswith(SERIAL):
            raise InputError(f"--device {self.name}: it runs the network of its firmware only, no other programs")
        from tenon.cli.console import note
        from tenon.tools.devices import RemoteRunner, ask, find_devices, target_of

        specs = find_devices([self.name], self.file)
        if len(specs) > 1:
            names = ", ".join(spec.name for spec in specs)
            raise InputError(f"--device {self.name}: several devices fit: name one of {names}")
        (spec,) = specs
        runner = RemoteRunner(spec)
        if spec.emulates:
            note(f"device {spec.name} runs programs by {spec.command[0]}: its times are an emulator's")
        target = options.get("target") or spec.target
        if not target:
            with runner.connected() as connection:
                target = target_of(spec, ask(connection)).name
        return runner, {**options, "target": target}

    def _serial_board(self) -> SerialBoard:
        """The board at a serial port.  Raises InputError where a file of devices is named as well."""
        from tenon.tools.devices.serial_board import SerialBoard
        from tenon.tools.devices.serial_port import parse_serial

        assert self.name is not None
        if self.file is not None:
            raise InputError(f"--devices: no effect: --device {self.name} is a serial port")
        return SerialBoard(*parse_serial(self.name.removeprefix(SERIAL)))


SERIAL = "serial:"
"""The beginning of the name of a board at a serial port."""

HERE = DeviceChoice()
"""This machine."""
