"""Decode the outputs of a run to an answer, and print it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tenon.cli.console import console, table
from tenon.network.graph.dtype import Array
from tenon.runtime.engine.detect import DetectionNetwork, detections
from tenon.runtime.engine.image import InputImage

if TYPE_CHECKING:
    from tenon.cli.option_groups import OutputOptions
    from tenon.runtime.answers.answer import Answer


def decoded_answer(
    engine: DetectionNetwork,
    feeds: Mapping[str, Array],
    results: Mapping[str, Array],
    image: InputImage | None,
    names: Sequence[str],
    output: OutputOptions,
    match: Mapping[str, Array] | None = None,
) -> Answer | None:
    """The answer in the outputs: detections, or what the bundle's head decodes, or one recognised by the shapes.

    ``match`` are the outputs for the image to compare with; a network that nothing else is known of gives vectors then.
    None where none is described and, without an image, none is looked for.  Raises InputError for outputs that the
    head cannot decode.
    """
    from tenon.runtime.answers.base import Run, real_values
    from tenon.runtime.answers.boxes import detections_answer
    from tenon.runtime.answers.choice import head_for
    from tenon.runtime.answers.description import described_head
    from tenon.runtime.answers.heads.embedding import Embedding

    manifest = engine.manifest
    if image is not None and manifest.heads:
        scores = {"threshold": output.threshold, "overlap": output.overlap}
        given = {name: value for name, value in scores.items() if value is not None}
        return detections_answer(detections(engine, image, results, **given), names)
    if image is None and not manifest.decoding:
        return None
    head = head_for(manifest, len(names))
    if match is not None and not isinstance(head, Embedding):
        head = described_head({"kind": Embedding.kind}, manifest.outputs)
    if head is None:
        return None
    inputs, outputs = real_values(feeds, manifest.inputs), real_values(results, manifest.outputs)
    other = None if match is None else real_values(match, manifest.outputs)
    return head.answer(Run(inputs, outputs, image, names, output.threshold, output.overlap, output.top, other))


def print_answer(answer: Answer) -> None:
    """Print the table and the last line of an answer."""
    if answer.rows:
        right = tuple(range(1, len(answer.columns)))
        shown = table(*answer.columns, right=right)
        for row in answer.rows:
            shown.add_row(*row)
        console.print(shown)
    if answer.summary:
        console.print(answer.summary, markup=False)
