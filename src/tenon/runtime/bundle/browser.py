"""The description of a network that pages and npm packages have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon.errors import UnsupportedError
from tenon.machine.codegen.reset import initial_bytes
from tenon.machine.plan.program import Program
from tenon.network.graph.dtype import DType
from tenon.network.graph.preprocessing import planes
from tenon.runtime.bundle.manifest import BundleTensor, Manifest


def description(manifest: Manifest, webgpu: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The network as ``web`` describes it to JavaScript: inputs and outputs with their offsets in the module's region,
    the input that takes an image (-1: none, or there are others beside it), labels, sizes in bytes; ``webgpu`` is
    ``webgpu_description`` of its form for WebGPU, if one was asked for."""
    inputs = manifest.inputs
    given = [i for i, tensor in enumerate(inputs) if not tensor.state]
    takes_image = len(given) == 1 and inputs[given[0]].name in manifest.preprocessing
    return {
        "name": manifest.name,
        "version": manifest.tenon,
        "target": manifest.target.name,
        "model": manifest.origin.file if manifest.origin else "",
        "inputs": [{**_tensor(tensor), "image": _image(tensor, manifest), **_state(tensor)} for tensor in inputs],
        "outputs": [_tensor(tensor) for tensor in manifest.outputs],
        "imageInput": given[0] if takes_image else -1,
        "detects": takes_image and manifest.heads is not None,
        "labels": list(manifest.labels),
        "weights": manifest.memory.constant,
        "memory": manifest.memory.peak,
        "webgpu": webgpu,
    }


def webgpu_description(form: Program | UnsupportedError, *, first: bool) -> dict[str, Any]:
    """The form of a network for WebGPU: the size of its mutable region and the offsets of inputs and outputs in it, in
    bytes; or why there is none.  ``first``: it is preferred to that for WebAssembly."""
    if isinstance(form, UnsupportedError):
        return {"module": False, "first": first, "refused": _why_refused(form)}
    inputs, outputs = ([port.offset for port in ports] for ports in (form.inputs, form.outputs))
    size = form.memory.mutable
    return {"module": True, "first": first, "refused": "", "size": size, "inputs": inputs, "outputs": outputs}


def _why_refused(error: UnsupportedError) -> str:
    """One line of the first cause, with its layers and without the remedies, which are for who compiles."""
    plain = UnsupportedError(error.source, [problem._replace(remedy="") for problem in error.problems])
    return str(plain).splitlines()[1].removeprefix("  - ")


def _tensor(tensor: BundleTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "offset": tensor.offset,
        "scale": tensor.scale,
        "zeroPoint": tensor.zero_point,
    }


def _state(tensor: BundleTensor) -> dict[str, Any]:
    """The output that an input holds after a run ("": none), and the bytes of its initial content: of all elements, of
    one that is that of all, or none for zeros."""
    initial = tensor.initial or () if tensor.state else ()
    return {"state": tensor.state, "initial": initial_bytes(initial, DType(tensor.dtype))}


def _image(tensor: BundleTensor, manifest: Manifest) -> dict[str, int] | None:
    shape = planes(tensor.shape)
    if shape is None or tensor.name not in manifest.preprocessing:
        return None
    channels, height, width, _ = shape
    return {"channels": channels, "height": height, "width": width}
