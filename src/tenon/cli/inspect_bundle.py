"""``tenon inspect`` of a saved bundle: its manifest, and the state of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tenon.cli.console import console, count, patches_text, print_json, size, table
from tenon.cli.device_placement import print_placement
from tenon.cli.port_lines import PortLine, port_lines
from tenon.errors import BundleError
from tenon.machine.codegen.backend import find
from tenon.machine.targets.registry import rows
from tenon.network.graph.size_range import SizeRange
from tenon.options import opening
from tenon.runtime.bundle import Manifest, read_manifest
from tenon.runtime.bundle.container import Container
from tenon.runtime.bundle.manifest import BundleTensor, FileRecord, size_ranges, typed_text
from tenon.runtime.bundle.signature import signed_version, signer
from tenon.runtime.engine.files import check_folder, choose_target, open_container

_SHOWN = 16  # digits of a digest
_CHUNK = 1 << 20


def inspect_bundle(path: Path, *, layers: bool, as_json: bool) -> None:
    """Print a bundle, or those of a ``.tenon`` file.  Then raises BundleError if a file is missing or damaged."""
    if not path.is_dir():
        return _inspect_single_file(path, layers=layers, as_json=as_json)
    check_folder(path)
    manifest = read_manifest(path)
    states = {name: _state(path / name, record) for name, record in manifest.files.items()}
    if as_json:
        print_json({**manifest.json(), "states": states})
    else:
        _print(manifest, states, layers=layers)
    return _raise_if_damaged(path, states)


def _inspect_single_file(path: Path, *, layers: bool, as_json: bool) -> None:
    file = open_container(str(path))
    made = []
    for target in file.targets:
        manifest = file.manifest(target)
        parts = {name: hashlib.sha256(file.part(target, name).data).hexdigest() for name in manifest.files}
        states = {n: "ok" if parts[n] == record.sha256 else "damaged" for n, record in manifest.files.items()}
        made.append((manifest, states))
    by, taken = signer(file), _taken(file)
    if as_json:
        signature = {"signed_by": by.hex() if by else None, "version": signed_version(file)}
        about = {"encrypted": file.encrypted, **signature, "taken": taken}
        print_json({"targets": [{**manifest.json(), "states": states} for manifest, states in made], **about})
    else:
        console.print(
            f"for {', '.join(file.targets)}; here {f'{taken} is taken' if taken else 'none runs'}", markup=False
        )
        if file.encrypted:
            console.print("encrypted with AES-256-GCM")
        if by:
            version = signed_version(file)
            text = f"signed by {by.hex()} as version {version} (tenon sign --public-key verifies it)"
            console.print(text, markup=False)
    for manifest, states in made:
        if not as_json:
            _print(manifest, states, layers=layers)
        _raise_if_damaged(path, states)


def _taken(file: Container) -> str | None:
    """The target whose code is taken on this machine."""
    try:
        return choose_target(file.path, file.targets, opening()[0])
    except BundleError:
        return None


def _raise_if_damaged(path: Path, states: Mapping[str, str]) -> None:
    if wrong := [f"{name} is {state}" for name, state in states.items() if state != "ok"]:
        raise BundleError(f"{path}: {', '.join(wrong)}: compile the model again")


def _state(path: Path, record: FileRecord) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return "unreadable" if path.exists() else "missing"
    return "ok" if digest.hexdigest() == record.sha256 else "damaged"


def _print(manifest: Manifest, states: Mapping[str, str], *, layers: bool) -> None:
    target, memory = manifest.target, manifest.memory
    producer = f"Tenon {manifest.tenon}" + (f" and {manifest.compiler}" if manifest.compiler else "")
    console.print(
        f"bundle {manifest.name} for {target.name} ({target.triple}, {target.cpu}), by {producer}", markup=False
    )
    if origin := manifest.origin:
        console.print(f"compiled from {origin.file} ({origin.format}), SHA-256\n{origin.sha256}", markup=False)
    for number, binding in enumerate(manifest.every_binding(), 1):
        if manifest.bindings:
            console.print(f"{binding.entry}: binding {number} of {len(manifest.bindings)}", markup=False)
        ranges, held = size_ranges(binding.inputs), {name for each in binding.inputs for _, name in each.extents}
        for what, tensors in (("input", binding.inputs), ("output", binding.outputs)):
            shown = [each for each in tensors if not each.calls_device and each.name not in held]
            for line in port_lines([_port(manifest, what, t, ranges if what == "input" else {}) for t in shown]):
                console.print(line, markup=False, soft_wrap=True)
    facts = table("", "")
    macs = sum(step.macs for step in manifest.nodes)
    facts.add_row("weights", size(memory.constant))
    facts.add_row("peak RAM", size(memory.peak))
    if memory.stack is not None:
        facts.add_row("stack, at most", size(memory.stack))
    if manifest.instructions is not None:
        facts.add_row("instructions, at most", count(manifest.instructions))
    facts.add_row("  of which activations", f"{size(memory.activations)} (lower bound {size(memory.bound)})")
    if manifest.state_bytes:
        facts.add_row("  of which states", size(manifest.state_bytes))
    if manifest.patches:
        facts.add_row("in patches", patches_text(manifest.patches))
    if target.name in rows() and find(rows()[target.name].backend).launch == "grid":
        facts.add_row("memory of the device", size(memory.constant + memory.mutable + memory.activations))
    if manifest.size:
        facts.add_row("code", size(manifest.size.code + manifest.size.data))
    facts.add_row("multiply-accumulates", count(macs))
    facts.add_row("kernels", f"{len(manifest.kernels)}, {sum(manifest.kernels.values())} calls")
    facts.add_row("threads", f"1 to {manifest.threads}" if manifest.threads > 1 else "1")
    facts.add_row("error of algorithms", f"{manifest.error:.1e} of RMS")
    if manifest.stored:
        facts.add_row("stored weights", str(manifest.stored))
    if manifest.tuned:
        facts.add_row("tuned", f"{manifest.tuned.layers} layer(s), choices {manifest.tuned.sha256[:_SHOWN]}")
    if manifest.heads:
        facts.add_row("detections", f"{manifest.heads.kind} in {', '.join(manifest.heads.outputs)}")
    given = [f"{name}={value}" for name, value in manifest.options.items() if value not in (None, False)]
    facts.add_row("options", ", ".join(given))
    console.print(facts, markup=False)
    files = table("file", "bytes", "SHA-256", "", right=(1,))
    for name, record in manifest.files.items():
        files.add_row(name, str(record.bytes), record.sha256[:_SHOWN], states[name])
    console.print(files, markup=False)
    if manifest.placement is not None:
        print_placement(manifest.placement, layers=layers)
    if layers:
        bounded = manifest.instructions is not None
        listed = table("layer", "operator", "kernel", "MACs", *(["instructions"] if bounded else []), right=(3, 4))
        for step in manifest.nodes:
            most = [count(step.instructions) if step.instructions is not None else ""] if bounded else []
            listed.add_row(step.layer, step.op, step.kernel, count(step.macs), *most)
        console.print(listed, markup=False)


def _port(manifest: Manifest, what: str, tensor: BundleTensor, ranges: Mapping[str, SizeRange]) -> PortLine:
    """``input  image  f32[1,3,224,224]``, and its preprocessing."""
    type = typed_text(tensor, ranges)
    if tensor.initial:
        type += f"  {tensor.initial[0]:g} in the first run" if len(tensor.initial) == 1 else "  with initial elements"
    preprocessing = manifest.preprocessing.get(tensor.name) if what == "input" else None
    line = PortLine(what, tensor.name, type, tensor.state or "")
    if preprocessing is None:
        return line
    mean, scale = (",".join(f"{v:g}" for v in values) for values in (preprocessing.mean, preprocessing.scale))
    return line._replace(
        more=f"preprocessing: {preprocessing.channels}, {preprocessing.fit}, mean {mean}, scale {scale}"
    )
