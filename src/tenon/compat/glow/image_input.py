"""Images as inputs, by the options of Glow's tools; and the scores that they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenon.compat.glow.options import Arguments
from tenon.errors import InputError
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.preprocessing import Preprocessing, planes
from tenon.runtime.engine.image import read_image

_MODES = {
    "": (0.0, 1.0),
    "0to255": (0.0, 1.0),
    "0to1": (0.0, 1 / 255),
    "neg1to1": (127.5, 1 / 127.5),
    "neg128to127": (128.0, 1.0),
}
"""The number subtracted from the bytes of images, and the factor after it."""
_IMAGENET_MEAN, _IMAGENET_STDDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images(arguments: Arguments, graph: Graph, files: Sequence[str]) -> tuple[str, list[Array]]:
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


def batches(images: Sequence[Array], size: int) -> list[Array]:
    """Images one behind the other, as many as the network takes at a time.  Raises InputError if some are left over."""
    if len(images) % size:
        raise InputError(f"-minibatch={size}: {len(images)} images are no multiple of it")
    return [np.concatenate(images[at : at + size]) for at in range(0, len(images), size)]


def scores(arguments: Arguments, results: Mapping[str, Array], images: int) -> Array:
    """The classes' numbers, [images, classes]."""
    wanted = arguments.get("output-name") or next(iter(results))
    if wanted not in results:
        raise InputError(f"-output-name={wanted}: the model has {', '.join(results)}")
    return results[wanted].reshape(images, -1).astype(np.float64)
