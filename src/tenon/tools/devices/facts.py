"""Ask a device what it is: processor and its features, temperature, clock, memory; and the target that suits it.

The files are those of Linux's sysfs (Documentation/admin-guide/thermal, cpufreq) and procfs; what a device does not
show is unknown.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import partial
from statistics import median

from tenon.errors import InputError
from tenon.machine.targets import find
from tenon.machine.targets.base import Host, Target
from tenon.machine.targets.host import best
from tenon.machine.targets.host_cpu import features, suits
from tenon.machine.targets.registry import rows
from tenon.tools.deployment.mace_config import TARGETS as TARGETS_OF_ABIS
from tenon.tools.devices.config import LINUX_ABIS
from tenon.tools.devices.remote import Connection
from tenon.tools.devices.spec import DeviceSpec

_QUESTIONS = {
    "machine": "uname -m",
    "system": "uname -s",
    "bits": "getconf LONG_BIT",
    "cpuinfo": "cat /proc/cpuinfo",
    "processors": "nproc",
    "model": "cat /proc/device-tree/model | tr -d '\\000'",
    "platform": "getprop ro.board.platform",
    "product": "getprop ro.product.model",
    "temperature": "cat /sys/class/thermal/thermal_zone*/temp",
    "clock": "cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq",
    "highest": "cat /sys/devices/system/cpu/cpu*/cpufreq/cpuinfo_max_freq",
    "memory": "grep MemAvailable /proc/meminfo",
}
_MARK = "tenon-fact:"

_FAMILIES = {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}
_WITHOUT_FEATURES = {"armv8l": "armv7", "armv7l": "armv7", "armv6l": "armv6"}
"""Targets of machines whose features do not matter, by uname -m."""

_CORES = {"0xd03": "cortex-a53", "0xd05": "cortex-a55", "0xd08": "cortex-a72", "0xd0b": "cortex-a76"}
"""Targets of Arm's cores, by "CPU part" of /proc/cpuinfo."""


@dataclass(frozen=True)
class DeviceFacts:
    """Facts that a device states of itself: None or empty where it says nothing.

    ``temperature`` is the highest in degrees Celsius, ``clock`` and ``highest_clock`` the highest of a core in MHz,
    ``memory`` and ``space`` free bytes.
    """

    machine: str
    system: str
    bits: int | None
    features: frozenset[str]
    cores: frozenset[str]
    processor: str
    processors: int | None
    model: str
    soc: str
    temperature: float | None
    clock: float | None
    highest_clock: float | None
    memory: int | None
    space: int | None

    @property
    def android(self) -> bool:
        """Whether the device runs Android, which alone names its SoC."""
        return bool(self.soc)


def ask(connection: Connection) -> DeviceFacts:
    """One shell command for all.  Raises DeviceError if the device does not answer."""
    spec = connection.spec
    command = "\n".join(f"echo {_MARK}{name}; {{ {question}; }} 2>/dev/null" for name, question in _QUESTIONS.items())
    text = connection.check(command)
    answers = {
        name: value.strip() for name, value in re.findall(rf"{_MARK}(\w+)\r?\n(.*?)(?=\n?{_MARK}|\Z)", text, re.S)
    }
    info = answers.get("cpuinfo", "")
    temperatures, clocks, highest = (_numbers(answers.get(name, "")) for name in ("temperature", "clock", "highest"))
    memory = _numbers(answers.get("memory", ""))
    return DeviceFacts(
        machine=answers.get("machine", "").lower(),
        system=answers.get("system", "").lower(),
        bits=next(iter(_numbers(answers.get("bits", ""))), None),
        features=features(partial(_listed, info)),
        cores=frozenset(re.findall(r"^CPU part\s*:\s*(\S+)", info, re.M)),
        processor=_listed(info, "model name") or _listed(info, "Hardware"),
        processors=next(iter(_numbers(answers.get("processors", ""))), None),
        model=spec.model or answers.get("model") or answers.get("product", ""),
        soc=answers.get("platform", ""),
        temperature=max((t / 1000 if t >= 1000 else float(t) for t in temperatures), default=None),
        clock=max(clocks) / 1000 if clocks else None,
        highest_clock=max(highest) / 1000 if highest else None,
        memory=memory[0] * 1024 if memory else None,
        space=connection.free(_existing(connection, spec.place)),
    )


def _existing(connection: Connection, folder: str) -> str:
    """The folder, or the nearest one above it that exists."""
    quoted = shlex.quote(folder)
    return (
        connection.check(
            f'd={quoted}; while [ ! -d "$d" ] && [ "$d" != . ] && [ "$d" != / ]; do d=$(dirname "$d"); done; echo "$d"'
        )
        or "."
    )


def _listed(info: str, key: str) -> str:
    match = re.search(rf"^{key}\s*:\s*(.*)$", info, re.M)
    return match[1].strip() if match else ""


def _numbers(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"(?<!\S)-?\d+(?!\S)", text)]


def target_of(spec: DeviceSpec, facts: DeviceFacts | None) -> Target:
    """The target of ``spec``, or the best one for what the device says.  Raises InputError if none suits it."""
    if spec.target:
        return find(spec.target)
    if facts is not None and (row := _asked(facts)):
        return row
    for abi in spec.abis:
        return find(TARGETS_OF_ABIS.get(abi) or LINUX_ABIS[abi])
    said = f" (it says it is a {facts.machine or 'machine that it does not name'})" if facts else ""
    raise InputError(f"device '{spec.name}': no target suits it{said}: give its 'target' in devices.yml")


def _asked(facts: DeviceFacts) -> Target | None:
    family = _FAMILIES.get(facts.machine, facts.machine)
    known = rows()
    if facts.android:
        return known.get(f"android-{'armv7' if facts.bits == 32 else {'aarch64': 'arm64'}.get(family, 'x86_64')}")
    if family == "aarch64" and facts.bits == 32:  # programs of 32 bits on a kernel of 64
        family = "armv8l"
    if family in _WITHOUT_FEATURES:
        return known.get(_WITHOUT_FEATURES[family])

    def fits(host: Host) -> bool:
        return suits(host, family, facts.system, facts.features)

    row = best(fits)
    if row is None:
        return known.get(family)
    core = known.get(_CORES.get(next(iter(facts.cores)), "")) if len(facts.cores) == 1 else None
    return core if core and core.host and row.host and core.host.features == row.host.features else row


def describe_conditions(before: DeviceFacts, after: DeviceFacts) -> str:
    """Temperature and clock before and after a measurement, as text; "" if the device shows none."""
    parts = []
    if before.temperature is not None and after.temperature is not None:
        parts.append(f"temperature {before.temperature:.1f} to {after.temperature:.1f} C")
    clocks = [c for c in (before.clock, after.clock) if c is not None]
    if clocks:
        most = f" of {after.highest_clock:.0f}" if after.highest_clock else ""
        parts.append(f"clock {median(clocks):.0f}{most} MHz")
    return ", ".join(parts)
