"""Bundles for devices: compile a model for one, push its bundle and compare what it computes there with this machine;
saved bundles that suit one, to deploy or run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tenon.atomic_write import scratch
from tenon.errors import DeviceError, InputError
from tenon.formats.wire.encryption import WrongKeyError
from tenon.machine.targets import Target, find
from tenon.network.graph.dtype import Array
from tenon.network.graph.graph import Graph
from tenon.options import Options
from tenon.pipeline import compile
from tenon.runtime.bundle import Bundle, read_manifest
from tenon.runtime.bundle.container import is_container
from tenon.runtime.bundle.manifest import FILE
from tenon.runtime.bundle.names import executable_name, identifier
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.engine.compare import cosine_similarity
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.files import check_folder, open_container
from tenon.runtime.engine.io import views
from tenon.runtime.engine.saved_bundle import SavedBundle
from tenon.runtime.engine.timing import fill_randomly, value_ranges
from tenon.runtime.engine.verify import verify
from tenon.tools.devices.deploy import KEEP, Deployed, deploy
from tenon.tools.devices.facts import DeviceFacts, ask, target_of
from tenon.tools.devices.remote import Connection, RemoteSession
from tenon.tools.devices.spec import DeviceSpec

SIMILAR = 0.999
"""Least cosine similarity between the outputs of a device and those of this machine."""

Progress = Callable[[str], None]


def deploy_model(
    connection: Connection,
    graph: Graph,
    options: Mapping[str, Any],
    *,
    keep: int = KEEP,
    progress: Progress = lambda stage: None,
) -> Deployed:
    """Compile ``graph`` for the device, push the bundle with an executable where the target has one, and run it there
    on random input before it becomes current.

    ``options`` are fields of ``Options``.  Raises DeviceError if the outputs differ from this machine's.
    """
    progress("ask the device")
    target = find(options.get("target") or target_of(connection.spec, ask(connection)).name)
    progress(f"compile for {target.name}")
    bundle = compile(graph, Options.from_environment(**{**options, "target": target.name}))
    runs = target.c_library and target.format.portable_library and target.byte_order == sys.byteorder
    with scratch() as folder:
        bundle.save(folder / "bundle", emit=(*bundle.parts, *(("exe",) if runs else ())))
        files = {path.name: path.read_bytes() for path in (folder / "bundle").iterdir()}
    program = executable_name(bundle.name, target) if runs else ""
    own = compile(graph, Options.from_environment(**{**options, "target": "host"}))

    def check(session: RemoteSession) -> None:
        progress("run it on the device")
        _check(connection, session, bundle, own, program)

    progress("push")
    return deploy(connection, bundle.name, files, executable=program, check=check, keep=keep)


def deploy_bundle(
    connection: Connection, path: Path, *, keep: int = KEEP, progress: Progress = lambda stage: None
) -> Deployed:
    """Push a bundle as it is, the files of a folder or a ``.tenon`` file, and run it there once before it becomes
    current; an encrypted file whose key is not known here is not run (``Deployed.checked``).

    Raises InputError if the device cannot run its code, DeviceError if the result is not the one that its manifest
    states.
    """
    progress("ask the device")
    chosen = suited_target(connection, path)
    program = ""
    if is_container(path):
        name, files = identifier(path.stem), {path.name: path.read_bytes()}
    else:
        manifest = read_manifest(path)
        name, files = manifest.name, {name: (path / name).read_bytes() for name in (*manifest.files, FILE)}
        program = executable_name(name, chosen)

    without_key = False

    def check(session: RemoteSession) -> None:
        nonlocal without_key
        progress("run it on the device")
        try:
            _verify(_opened(connection, path, chosen, Options.from_environment()), connection)
        except WrongKeyError:
            without_key = True

    progress("push")
    done = deploy(connection, name, files, executable=program if program in files else "", check=check, keep=keep)
    return replace(done, checked=not without_key)


def open_on_device(connection: Connection, path: str | Path, options: Options) -> RemoteBundle:
    """A saved bundle, to be run on the device: a folder, or the part of a ``.tenon`` file that suits the device best.

    Raises InputError if the device cannot run its code, BundleError for a bundle that is damaged or encrypted with
    another key.
    """
    return _opened(connection, path, suited_target(connection, path), options)


def _opened(connection: Connection, path: str | Path, target: Target, options: Options) -> RemoteBundle:
    return RemoteBundle(SavedBundle(path, options, target.name if is_container(path) else ""), connection)


def _verify(device: RemoteBundle, connection: Connection) -> None:
    """Run a saved bundle once.  What it should answer is known where every target gives the same bits."""
    if not device.manifest.answer:
        device.run([_random_feeds(device)])
    elif not verify(device.manifest, lambda feeds: device.run([feeds])[0]).right:
        raise DeviceError(
            f"device '{connection.spec.name}': the result of '{device.name}' for the fixed input is not the one that "
            "its manifest states; the version before stays current"
        )


def suited_target(connection: Connection, path: str | Path) -> Target:
    """The target, among those that a saved bundle has code for, that uses most features of the device.  Raises
    InputError if the device runs code for none of them."""
    container = is_container(path)
    if not container:
        check_folder(path)
    names = open_container(str(path)).targets if container else (read_manifest(path).target.name,)
    targets, facts = [find(name) for name in names], ask(connection)
    reasons = {target.name: unsuited(connection.spec, facts, target) for target in targets}
    fitting = [target for target in targets if not reasons[target.name]]
    if not fitting:
        why = next(iter(reasons.values()), "takes code for no target")
        raise InputError(
            f"the bundle is for {', '.join(names)}, but device '{connection.spec.name}' {why}: compile the model for "
            f"{target_of(connection.spec, facts).name}"
        )
    return max(fitting, key=lambda target: len(target.host.features) if target.host else 0)


def unsuited(spec: DeviceSpec, facts: DeviceFacts, target: Target) -> str:
    """Why a device does not run code for a target; "" if it does."""
    suited = target_of(spec, facts)
    machines = [
        (each.triple.split("-")[0], each.object, each.byte_order, each.freestanding) for each in (target, suited)
    ]
    if machines[0] != machines[1]:
        return f"takes code for {suited.name}"
    features = target.host.features if target.host else frozenset()
    lacking = sorted(features - facts.features) if facts.features and not spec.target else []
    return f"lacks {', '.join(lacking)}" if lacking else ""


def _check(connection: Connection, session: RemoteSession, bundle: Bundle, own: Bundle, program: str) -> None:
    """Compare outputs for random input: of the executable that was pushed, else of a program made for the purpose."""
    with open_bundle(own) as engine:
        feeds = _random_feeds(engine)
        wanted = engine.run(feeds)
    if any(tensor.string or tensor.extents for tensor in bundle.interface.outputs):
        program = ""
    got = _ran(session, bundle, feeds, program) if program else RemoteBundle(bundle, connection).run([feeds])[0]
    for name, array in wanted.items():
        if array.dtype == object or not array.size:
            continue
        alike = cosine_similarity(got[name].astype(np.float64), array.astype(np.float64))
        if not alike >= SIMILAR:
            raise DeviceError(
                f"device '{connection.spec.name}': output '{name}' of '{bundle.name}' differs from this machine's: "
                f"cosine similarity {alike:.4f}, at least {SIMILAR} is required; the version before stays current"
            )


def _random_feeds(engine: Engine | RemoteBundle) -> dict[str, Array]:
    inputs = engine.inputs
    fill_randomly(inputs, value_ranges(engine.manifest.inputs))
    return {name: array.copy() for name, array in inputs.items()}


def _ran(session: RemoteSession, bundle: Bundle, feeds: Mapping[str, Array], program: str) -> dict[str, Array]:
    """The outputs of the executable, which reads and writes raw files; they are removed afterwards."""
    names = {f"check-{i}.bin": array for i, array in enumerate(feeds.values())}
    try:
        session.push({name: array.tobytes() for name, array in names.items()})
        done = session.run(program, (*names, "--raw-output", "check-out.bin"))
        if done.status:
            raise DeviceError(f"'{bundle.name}' ended with {done.status} on the device: {done.message}")
        content = session.pull("check-out.bin")
    finally:
        session.remove((*names, "check-out.bin"))
    outputs: dict[str, Array] = {}
    at = 0
    for tensor in bundle.interface.outputs:
        part = np.frombuffer(content[at : at + tensor.bytes], np.uint8)
        outputs |= views(part, (tensor._replace(offset=0),))
        at += tensor.bytes
    return outputs
