"""Compile a model for a device, push its bundle, and compare what it computes there with this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tenon.atomic_write import scratch
from tenon.bundle import Bundle, read_manifest
from tenon.bundle.manifest import FILE, Manifest
from tenon.bundle.names import executable_name
from tenon.devices.deploy import KEEP, Deployed, deploy
from tenon.devices.facts import ask, target_of
from tenon.devices.remote import Connection, RemoteSession
from tenon.engine import open_bundle
from tenon.engine.compare import cosine_similarity
from tenon.engine.device import Device
from tenon.engine.io import views
from tenon.engine.timing import fill_randomly
from tenon.errors import DeviceError, InputError
from tenon.ir.dtype import Array
from tenon.ir.graph import Graph
from tenon.options import Options
from tenon.pipeline import compile
from tenon.targets import find

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
    runs = target.c_library and target.object == "elf" and target.byte_order == sys.byteorder
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
    connection: Connection, folder: Path, *, keep: int = KEEP, progress: Progress = lambda stage: None
) -> Deployed:
    """Push a bundle as it is.  Raises InputError if the device cannot run its code."""
    manifest = read_manifest(folder)
    progress("ask the device")
    _suits(connection, manifest)
    files = {name: (folder / name).read_bytes() for name in (*manifest.files, FILE)}
    progress("push")
    program = executable_name(manifest.name, find(manifest.target.name))
    return deploy(connection, manifest.name, files, executable=program if program in files else "", keep=keep)


def _suits(connection: Connection, manifest: Manifest) -> None:
    facts = ask(connection)
    needed, suited = find(manifest.target.name), target_of(connection.spec, facts)
    families = (needed.triple.split("-")[0], suited.triple.split("-")[0])
    lacking = sorted((needed.host.features if needed.host else frozenset()) - facts.features) if facts.features else []
    if families[0] != families[1] or (lacking and not connection.spec.target):
        why = f"lacks {', '.join(lacking)}" if families[0] == families[1] else f"takes code for {suited.name}"
        raise InputError(
            f"the bundle is for {needed.name}, but device '{connection.spec.name}' {why}: compile the model for "
            f"{suited.name}"
        )


def _check(connection: Connection, session: RemoteSession, bundle: Bundle, own: Bundle, program: str) -> None:
    """Compare outputs for random input: of the executable that was pushed, else of a program made for the purpose."""
    with open_bundle(own) as engine:
        inputs = engine.inputs
        fill_randomly(inputs, {t.name: t.range for t in engine.manifest.inputs if t.range is not None})
        feeds = {name: array.copy() for name, array in inputs.items()}
        wanted = engine.run(feeds)
    if any(tensor.string or tensor.extent for tensor in bundle.manifest({}, compiled=False).outputs):
        program = ""
    got = _ran(session, bundle, feeds, program) if program else Device(bundle, connection).run([feeds])[0]
    for name, array in wanted.items():
        if array.dtype == object or not array.size:
            continue
        alike = cosine_similarity(got[name].astype(np.float64), array.astype(np.float64))
        if not alike >= SIMILAR:
            raise DeviceError(
                f"device '{connection.spec.name}': output '{name}' of '{bundle.name}' differs from this machine's: "
                f"cosine similarity {alike:.4f}, at least {SIMILAR} is required; the version before stays current"
            )


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
    for tensor in bundle.manifest({}, compiled=False).outputs:
        part = np.frombuffer(content[at : at + tensor.bytes], np.uint8)
        outputs |= views(part, (tensor._replace(offset=0),))
        at += tensor.bytes
    return outputs
