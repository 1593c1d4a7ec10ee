"""``image-classifier``: the classes of images, or a bundle, or a profile for quantisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tenon
from tenon.compat.glow.image_input import batches, images, scores
from tenon.compat.glow.model import dump_graphs, emit, load, options, quantised, refuse_unsupported
from tenon.compat.glow.options import Arguments
from tenon.compat.glow.profiler import dump_profile
from tenon.errors import InputError
from tenon.network.graph.graph import Array


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
    name, pixels = images(arguments, graph, files)
    print(f"Model: {arguments.lists['model'][0]}")
    print("Running 1 thread(s).")
    groups = batches(pixels, arguments.number("minibatch", 1))
    if path := arguments.get("dump-profile"):
        dump_profile(arguments, given, [{name: batch} for batch in groups], path)
    chosen, wrong = options(arguments, "host"), 0
    expected = [int(word) for text in arguments.lists.get("expected-labels", []) for word in text.split(",")]
    count = 0
    with tenon.open(tenon.compile(graph, **chosen)) as engine:
        for batch in groups:
            rows = scores(arguments, engine.run({name: batch.astype(engine.inputs[name].dtype)}), len(batch))
            for score in rows:
                labels = _labels(arguments, score)
                _tell(files[count], labels)
                wrong += count < len(expected) and expected[count] != labels[0][0]
                count += 1
    return wrong


def _files(arguments: Arguments) -> list[str]:
    paths = list(arguments.positional)
    try:
        if folder := arguments.get("input-image-dir"):
            paths += [str(path) for path in sorted(Path(folder).iterdir()) if path.is_file()]
        if listing := arguments.get("input-image-list-file"):
            paths += [line.strip() for line in Path(listing).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from None
    if not paths:
        raise InputError("no images: name them on the command line, or with -input-image-dir")
    return paths


def _tell(file: str, labels: list[tuple[int, float]]) -> None:
    for rank, (label, probability) in enumerate(labels, 1):
        head = f" File: {file}" if rank == 1 else " " * len(f" File: {file}")
        print(f"{head}\tLabel-K{rank}: {label} (probability: {probability:.4f})")


def _labels(arguments: Arguments, scored: Array) -> list[tuple[int, float]]:
    """The classes with the largest numbers, the largest first."""
    if "compute-softmax" in arguments.flags:
        scored = np.exp(scored - scored.max())
        scored /= scored.sum()
    offset = arguments.number("label-offset", 0)
    order = np.argsort(-scored, kind="stable")[: max(1, arguments.number("topk", 1))]
    return [(int(i) - offset, float(scored[i])) for i in order]
