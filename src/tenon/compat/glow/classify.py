"""``image-classifier``: the classes of images, or a bundle, or a profile for quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import tenon
from tenon.atomic_write import write
from tenon.compat.glow.model import dump_graphs, emit, load, options, quantised, refuse_unsupported
from tenon.compat.glow.options import Arguments
from tenon.engine.image import read_image
from tenon.errors import InputError
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.preprocessing import Preprocessing, planes
from tenon.quantization.by_ranges import profiled
from tenon.quantization.glow_profile import Profile

_MODES = {"": (0.0, 1.0), "0to255": (0.0, 1.0), "0to1": (0.0, 1 / 255), "neg1to1": (127.5, 1 / 127.5),
          "neg128to127": (128.0, 1.0)}  # fmt: skip
"""What is subtracted from the bytes of images, and the factor after it."""
_IMAGENET_MEAN, _IMAGENET_STDDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def classify(arguments: Arguments) -> int:
    """Print the classes of the images; the number of those that differ from ``-expected-labels``.

    With ``-emit-bundle`` a bundle is written instead, with ``-dump-profile`` a profile besides.
    """
    given = load(arguments)
    graph = quantised(arguments, given)
    dump_graphs(arguments, graph)
    if arguments.get("emit-bundle"):
        emit(arguments, graph)
        return 0
    refuse_unsupported(arguments)
    files = _files(arguments)
    name, images = _images(arguments, graph, files)
    print(f"Model: {arguments.lists['model'][0]}")
    print("Running 1 thread(s).")
    if path := arguments.get("dump-profile"):
        _dump_profile(arguments, given, name, images, path)
    chosen, wrong = options(arguments, "host"), 0
    expected = [int(word) for text in arguments.lists.get("expected-labels", []) for word in text.split(",")]
    batches, count = _batches(images, arguments.number("minibatch", 1)), 0
    with tenon.open(tenon.compile(graph, **chosen)) as engine:
        for batch in batches:
            scores = _scores(arguments, engine.run({name: batch.astype(engine.inputs[name].dtype)}), len(batch))
            for score in scores:
                labels = _labels(arguments, score)
                _tell(files[count], labels)
                wrong += count < len(expected) and expected[count] != labels[0][0]
                count += 1
    return wrong


def _files(arguments: Arguments) -> list[str]:
    found = list(arguments.positional)
    try:
        if folder := arguments.get("input-image-dir"):
            found += [str(path) for path in sorted(Path(folder).iterdir()) if path.is_file()]
        if listing := arguments.get("input-image-list-file"):
            found += [line.strip() for line in Path(listing).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
    if not found:
        raise InputError("no images: name them on the command line, or with -input-image-dir")
    return found


def _images(arguments: Arguments, graph: Graph, files: list[str]) -> tuple[str, list[Array]]:
    """The model's image input, and the images for it."""
    named = [text.split(",")[0] for text in arguments.lists.get("model-input", [])]
    ports = [v for v in graph.inputs if (v.name in named or not named) and planes(_one(v))]
    if len(ports) != 1:
        raise InputError(f"{graph.name}: {len(ports)} inputs take images: name one with -model-input-name")
    (port,) = ports
    preprocessing = _preprocessing(arguments, planes(_one(port)) or (0, 0, 0, False))
    return port.name, [read_image(file, _one(port), preprocessing).pixels for file in files]


def _one(value: Value) -> tuple[int, ...]:
    """The shape of one of the images that an input takes at a time."""
    return (1, *value.type.dims[1:])


def _preprocessing(arguments: Arguments, image: tuple[int, int, int, bool]) -> Preprocessing:
    arguments.chosen("image-layout", ("", "NHWC" if image[3] else "NCHW"))
    mean, scale = _MODES[arguments.chosen("image-mode", tuple(_MODES))]
    channels = arguments.chosen("image-channel-order", ("BGR", "RGB"))
    means = _numbers(arguments, "mean") or (
        _IMAGENET_MEAN if "use-imagenet-normalization" in arguments.flags else (0.0,)
    )
    deviations = _numbers(arguments, "stddev") or (
        _IMAGENET_STDDEV if "use-imagenet-normalization" in arguments.flags else (1.0,)
    )
    count = max(len(means), len(deviations))
    means, deviations = (v * count if len(v) == 1 else v for v in (means, deviations))
    # ((v - mean) * scale - m) / d  =  (v - (mean + m / scale)) * (scale / d)
    return Preprocessing(
        mean=tuple(mean + m / scale for m in means),
        scale=tuple(scale / d for d in deviations),
        channels="bgr" if channels == "BGR" else "rgb",
    )


def _numbers(arguments: Arguments, name: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in arguments.get(name).split(",") if word)
    except ValueError:
        raise InputError(f"-{name}={arguments.get(name)}: write numbers separated by commas") from None


def _batches(images: list[Array], size: int) -> list[Array]:
    """Images one behind the other, as many as the network takes at a time.  Raises InputError if some are left over."""
    if len(images) % size:
        raise InputError(f"-minibatch={size}: {len(images)} images are no multiple of it")
    return [np.concatenate(images[at : at + size]) for at in range(0, len(images), size)]


def _tell(file: str, labels: list[tuple[int, float]]) -> None:
    for rank, (label, probability) in enumerate(labels, 1):
        head = f" File: {file}" if rank == 1 else " " * len(f" File: {file}")
        print(f"{head}\tLabel-K{rank}: {label} (probability: {probability:.4f})")


def _scores(arguments: Arguments, results: Mapping[str, Array], images: int) -> Array:
    """The classes' numbers, [images, classes]."""
    wanted = arguments.get("output-name") or next(iter(results))
    if wanted not in results:
        raise InputError(f"-output-name={wanted}: the model has {', '.join(results)}")
    return results[wanted].reshape(images, -1).astype(np.float64)


def _labels(arguments: Arguments, scores: Array) -> list[tuple[int, float]]:
    """The classes with the largest numbers, the largest first."""
    if "compute-softmax" in arguments.flags:
        scores = np.exp(scores - scores.max())
        scores /= scores.sum()
    offset = arguments.number("label-offset", 0)
    order = np.argsort(-scores, kind="stable")[: max(1, arguments.number("topk", 1))]
    return [(int(i) - offset, float(scores[i])) for i in order]


def _dump_profile(arguments: Arguments, graph: Graph, name: str, images: list[Array], path: str) -> None:
    for other in ("convert-to-fp16", "load-profile"):
        if other in arguments.flags or other in arguments.values:
            raise InputError(f"-dump-profile and -{other} exclude each other: leave out one")
    whole = profiled(graph)
    results = [v for node in whole for v in node.outputs if v.type.dtype.is_float and v not in whole.outputs]
    whole.outputs = [*whole.outputs, *results]
    profile = Profile.of(graph, arguments.number("num-histogram-bins", 10))
    with tenon.open(tenon.compile(whole, target="host")) as engine:
        for batch in _batches(images, arguments.number("minibatch", 1)):
            profile.add({f"{name}:0": batch})
            profile.add({f"{tensor}:0": array for tensor, array in engine.run({name: batch}).items()})
    write(path, profile.text(), "-dump-profile")
