"""``model-tuner``: narrower ranges in a profile, tensor by tensor, where the quantised model is more accurate so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import tenon
from tenon.atomic_write import write
from tenon.compat.glow.image_input import images, scores
from tenon.compat.glow.model import by_profile, load, loaded_profile, options, refuse_unsupported
from tenon.compat.glow.options import Arguments
from tenon.errors import InputError
from tenon.input_file import read_regular
from tenon.network.graph.graph import Array, Graph
from tenon.tools.quantization.by_ranges import tensors_with_ranges
from tenon.tools.quantization.glow_profile import GlowProfile, GlowRange


def tune(arguments: Arguments) -> int:
    """Write ``-dump-tuned-profile``: ``-load-profile``, with the range of each tensor halved up to
    ``-max-iter-per-node`` times and kept where most images of ``-dataset-file`` get their labels.  Raises InputError.
    """
    out, path = arguments.get("dump-tuned-profile"), arguments.get("load-profile")
    for name, value in (
        ("dump-tuned-profile", out),
        ("dataset-file", arguments.get("dataset-file")),
        ("dataset-path", arguments.get("dataset-path")),
    ):
        if not value:
            raise InputError(f"-{name} is missing: write -{name}=PATH")
    if not path:
        raise InputError("Input profile not found. Use the -load-profile option!")
    target, patience = _decimal(arguments, "target-accuracy", 1.0), _decimal(arguments, "acc-drop-skip", 0.05)
    refuse_unsupported(arguments)
    graph = load(arguments)
    tuned = _Tuner(arguments, graph, loaded_profile(path, graph)).tuned(target, patience)
    write(out, tuned.text(), "-dump-tuned-profile")
    return 0


class _Tuner:
    """A profile that is changed, and the accuracy of the model that is quantised by it."""

    def __init__(self, arguments: Arguments, graph: Graph, profile: GlowProfile) -> None:
        self.arguments, self.graph, self.profile = arguments, graph, profile
        files, self.labels = _labelled(Path(arguments.get("dataset-file")), Path(arguments.get("dataset-path")))
        self.name, self.images = images(arguments, graph, files)
        self.symmetric = arguments.get("quantization-schema", "asymmetric") != "asymmetric"
        self.tries = arguments.number("max-iter-per-node", 3)

    def tuned(self, target: float, patience: float) -> GlowProfile:
        """The profile, after all tensors or once ``target`` is passed; a tensor whose narrower range loses more than
        ``patience`` is narrowed no further."""
        print("\nComputing initial accuracy ... ")
        floats, best = self._accuracy(self.graph), self._quantised()
        print(f"Initial accuracy: {100 * floats:.4f} % (FLOAT)")
        print(f"Initial accuracy: {100 * best:.4f} % (QUANTIZED)")
        print(f"Target  accuracy: {100 * target:.4f} % (QUANTIZED)")
        names = sorted(self.profile.ranges)
        print(f"Number of tensors: {len(names)}\n")
        needed = tensors_with_ranges(self.graph)
        for number, name in enumerate(names, 1):
            if best > target:
                print("Target accuracy achieved! Tuning is stopped ...")
                break
            print(f'[{number}/{len(names)}] Tuning quantization for tensor "{name}"')
            if name.removesuffix(":0") in needed:
                best = self._narrowed(name, best, patience)
            else:  # no integers are stored in it
                print("  Tuning skipped for this tensor: not required")
        print(f"\nFinal accuracy: {100 * best:.4f} % (QUANTIZED)\n")
        return self.profile

    def _narrowed(self, name: str, best: float, patience: float) -> float:
        """Halve the range of a tensor and keep the best; returns the best accuracy."""
        kept = tried = self.profile.ranges[name]
        for number in range(1, self.tries + 1):
            if tried.least == tried.greatest:
                print("  Tuning skipped for this tensor: not required")
                break
            tried = halved(tried, symmetric=self.symmetric)
            self.profile.ranges[name] = tried
            print(f"  [{number}/{self.tries}] Testing range = [{tried.least:.4f}, {tried.greatest:.4f}]")
            accuracy = self._quantised()
            print(f"  Accuracy = {100 * accuracy:.4f} %")
            if accuracy == best:
                print("  Tuning stopped for this tensor: accuracy not improved")
                break
            if accuracy > best:
                best, kept = accuracy, tried
            if number < self.tries and accuracy < best - patience:
                print('  Tuning stopped for this tensor: accuracy dropped more than "acc-drop-skip"')
                break
        self.profile.ranges[name] = kept
        print(f"Best accuracy : {100 * best:.4f} %")
        return best

    def _quantised(self) -> float:
        return self._accuracy(by_profile(self.arguments, self.graph.copy(), self.profile))

    def _accuracy(self, graph: Graph) -> float:
        """The share of images whose largest score is that of their label."""
        with tenon.open(tenon.compile(graph, **options(self.arguments, "host"))) as engine:
            dtype = engine.inputs[self.name].dtype
            right = sum(
                int(self._best(engine.run({self.name: image.astype(dtype)}))) == label
                for image, label in zip(self.images, self.labels, strict=True)
            )
        return right / len(self.labels)

    def _best(self, results: dict[str, Array]) -> int:
        return int(scores(self.arguments, results, 1)[0].argmax())


def halved(span: GlowRange, *, symmetric: bool) -> GlowRange:
    """Half of a range: around the mean of its histogram, or around 0.  The histogram stays."""
    if symmetric:
        half = max(abs(span.least), abs(span.greatest)) / 2
        return GlowRange(-half, half, span.histogram)
    bins, total = len(span.histogram), sum(span.histogram)
    width = (span.greatest - span.least) / bins
    centres = [span.least + (i + 0.5) * width for i in range(bins)]
    middle = (span.least + span.greatest) / 2
    if total:
        middle = sum(c * n for c, n in zip(centres, span.histogram, strict=True)) / total
    return GlowRange(middle - (middle - span.least) / 2, middle + (span.greatest - middle) / 2, span.histogram)


def _labelled(listing: Path, folder: Path) -> tuple[list[str], list[int]]:
    """The files and labels of ``-dataset-file``: a path and a number in each line, separated by a space or comma."""
    files: list[str] = []
    labels: list[int] = []
    for number, line in enumerate(read_regular(listing).decode("utf-8", "replace").splitlines(), 1):
        words: Sequence[str] = [word for word in re.split(r"[\s,]+", line) if word]
        if not words:
            continue
        if len(words) < 2 or not words[1].isdecimal():
            raise InputError(f"{listing}:{number}: write a file and its label, as in image0.png 13")
        files.append(str(folder / words[0]))
        labels.append(int(words[1]))
    if not files:
        raise InputError(f"{listing}: there are no images in it: write a file and its label in each line")
    return files, labels


def _decimal(arguments: Arguments, name: str, default: float) -> float:
    try:
        return float(arguments.get(name, str(default)))
    except ValueError:
        raise InputError(f"-{name}={arguments.get(name)}: write a number") from None
