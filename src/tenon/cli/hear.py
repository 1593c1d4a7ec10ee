"""``tenon run MODEL sound.wav``: what a network hears."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from tenon.cli.answers import print_answer
from tenon.cli.console import console, duration, print_json
from tenon.cli.sound_input import Samples, Steps, parse_features, windows
from tenon.errors import InputError
from tenon.runtime.answers.base import Run, real_values
from tenon.runtime.answers.description import described_head
from tenon.runtime.answers.timeline import Moment, timeline_answer
from tenon.runtime.engine import Engine
from tenon.runtime.engine.sound import read_sound


def hear(
    engine: Engine, path: Path, features: str | None, names: Sequence[str], threshold: float | None, *, as_json: bool
) -> None:
    """Run a network on all parts of a sound and print what it hears in each.  Raises InputError."""
    chosen, sound, steps = parse_features(features or "samples"), read_sound(path), Steps(engine)
    if features is None and steps.shape[-1] < 2 * Samples.rate // 1000:
        raise InputError(
            f"--features: an input of {list(steps.shape)} takes features of a sound, not its samples: say which, as in "
            "--features 'mfcc window=640 step=320' (docs/howto/answers.md)"
        )
    outputs = [t for t in engine.manifest.outputs if t.name not in steps.states.values()]
    head = described_head(engine.manifest.decoding or {"kind": "classes", "outputs": outputs[0].name}, outputs)
    moments, seconds = list[Moment](), 0.0
    for start, end, values in windows(sound, chosen, steps):
        elements = steps.quantised(values)
        began = perf_counter()
        results = steps.run(elements)
        seconds += perf_counter() - began
        real = real_values(results, engine.manifest.outputs)
        inputs = real_values({steps.input: elements}, engine.manifest.inputs)
        moments.append(Moment(start, end, head.scores(Run(inputs, real))))
    answer = timeline_answer(moments, names, threshold)
    if as_json:
        return print_json({"seconds": seconds, "windows": len(moments), **answer.data})
    print_answer(answer)
    return console.print(f"{len(moments)} windows, {duration(1e3 * seconds / max(1, len(moments)))} each", markup=False)
