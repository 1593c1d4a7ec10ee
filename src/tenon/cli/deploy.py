"""``tenon deploy`` and ``tenon devices``: put bundles on devices, and list what devices there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tenon.cli.console import console, note, print_json, size, stages, table
from tenon.cli.model_source import ModelArgument
from tenon.cli.unused_options import refuse
from tenon.errors import InputError, TenonError
from tenon.runtime.bundle.names import identifier
from tenon.tools.devices import DeviceFacts, DeviceSpec, RemoteRunner, ask, find_devices, known_devices, target_of
from tenon.tools.devices.bundles import deploy_bundle, deploy_model
from tenon.tools.devices.deploy import Deployed, rollback


@dataclass(frozen=True)
class _DeviceState:
    """A device as ``tenon devices`` shows it."""

    spec: DeviceSpec
    facts: DeviceFacts | None = None
    target: str = ""
    why: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        facts = None if self.facts is None else asdict(self.facts)
        if facts is not None:
            facts |= {name: sorted(facts[name]) for name in ("features", "cores")}
        return {
            "name": self.spec.name,
            "transport": self.spec.transport,
            "address": self.spec.where,
            "state": "ready" if facts is not None else "unreachable",
            "why": self.why or None,
            "target": self.target or None,
            "socs": list(self.spec.socs),
            "facts": facts,
        }


def list_devices(names: Sequence[str], file: Path | None, *, as_json: bool) -> None:
    """Print every device, or those that are named, with what it is and whether it answers."""
    specs = find_devices(names, file) if names else known_devices(file)
    with stages("asking devices"), ThreadPoolExecutor(max(1, min(16, len(specs)))) as pool:
        states = list(pool.map(_state, specs))
    if as_json:
        return print_json([state.plain for state in states])
    if not states:
        return console.print("no devices: name them in devices.yml (docs/howto/devices.md)", markup=False)
    shown = table(
        "device", "link", "address", "state", "target", "SoC", "temperature", "clock", "free", right=(6, 7, 8)
    )
    for state in states:
        facts, spec = state.facts, state.spec
        shown.add_row(
            spec.name,
            spec.transport,
            spec.where,
            "ready" if facts else "unreachable",
            state.target or "-",
            ", ".join(spec.socs) or (facts.soc if facts else "") or "-",
            f"{facts.temperature:.1f} C" if facts and facts.temperature is not None else "-",
            f"{facts.clock:.0f} MHz" if facts and facts.clock is not None else "-",
            size(facts.space if facts else None),
        )
    console.print(shown)
    for state in states:
        if state.why:
            console.print(f"{state.spec.name}: {state.why}", markup=False, soft_wrap=True)
    return None


def _state(spec: DeviceSpec) -> _DeviceState:
    """One attempt: a list should not take long."""
    try:
        with RemoteRunner(replace(spec, retries=0)).connected() as connection:
            facts = ask(connection)
    except TenonError as error:
        return _DeviceState(spec, why=str(error))
    try:
        return _DeviceState(spec, facts, target_of(spec, facts).name)
    except InputError as error:
        return _DeviceState(spec, facts, why=str(error))


def deploy_to_devices(
    source: ModelArgument,
    names: Sequence[str],
    file: Path | None,
    options: Mapping[str, Any],
    *,
    keep: int,
    back: bool,
    as_json: bool,
) -> None:
    """Deploy to every device.  Failures are listed with the rest, and the first one is raised at the end."""
    if not names:
        raise InputError("no device to deploy to: name one with --device")
    if back:
        refuse(options, "--rollback goes back to a bundle that is on the device")
    elif source.bundle:
        source.check_bundle_options(options)
    done: list[Deployed] = []
    failures: list[TenonError] = []
    for spec in find_devices(names, file):
        try:
            with stages(f"deploying {source.name}") as progress, RemoteRunner(spec).connected() as connection:
                if back:
                    done.append(rollback(connection, identifier(Path(source.name).stem)))
                elif source.bundle:
                    done.append(deploy_bundle(connection, Path(source.model), keep=keep, progress=progress))
                else:
                    graph = source.load(progress)
                    done.append(deploy_model(connection, graph, options, keep=keep, progress=progress))
        except TenonError as error:
            failures.append(error)
    if as_json:
        print_json([asdict(each) for each in done])
    else:
        for each in done:
            was = f", before it {each.previous}" if each.previous not in ("", each.version) else ""
            sent = f"{size(each.pushed)} sent" if each.pushed else "nothing to send"
            console.print(
                f"{each.device}: {each.name} {each.version} is current ({sent}{was})", markup=False, soft_wrap=True
            )
            console.print(f"  in {each.folder}", markup=False, soft_wrap=True)
            if not each.checked:
                note(f"{each.name} was not run on {each.device}: its key is not known here (--key-file names it)")
    for failure in failures[1:]:
        console.print(str(failure), markup=False, soft_wrap=True)
    if failures:
        raise failures[0]
