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


@dataclass(frozen=True)
class DeviceChoice:
    """``--device`` and ``--devices``; ``name`` is None for this machine."""

    name: str | None = None
    file: Path | None = None

    @contextmanager
    def connected(self, options: Mapping[str, Any]) -> Iterator[tuple[Connection | None, dict[str, Any]]]:
        """A connection to the device, None if there is none to use, and ``options`` with the device's target."""
        runner, chosen = self.runner(options)
        if runner is None:
            yield None, chosen
            return
        with runner.connected() as connection:
            yield connection, chosen

    def runner(self, options: Mapping[str, Any]) -> tuple[RemoteRunner | None, dict[str, Any]]:
        """The device, None for this machine, and ``options`` with the device's target."""
        if self.name is None:
            return None, dict(options)
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


HERE = DeviceChoice()
"""This machine."""
