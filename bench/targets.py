"""Networks on targets: digest of the outputs, instructions of one run, code, RAM and stack, by emulators.

    scripts/targets [--target TARGET]... [MODEL ...]

The input is the fixed one of ``tenon verify``: the digests of an integer network are the same on every target.  Targets
are all that an emulator runs here, unless some are named; the network of handwritten digits stands for no MODEL.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tenon
from tenon.errors import TenonError
from tenon.machine.targets import find, targets
from tenon.machine.toolchain.size import sizes
from tenon.network.graph.fixed_input import answer_digest
from tenon.runtime.engine.instruction_count import count, missing
from tenon.runtime.engine.verify import fixed_feeds

DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"
SHOWN = 16  # characters of a digest


def main() -> None:
    parser = argparse.ArgumentParser(description="networks on targets, by emulators")
    parser.add_argument("models", nargs="*", default=[DIGITS], metavar="MODEL")
    parser.add_argument("--target", action="append", help="a target or product; all that an emulator runs here")
    parser.add_argument("--arithmetic", help="of quantised networks: tflm, litert, onnx or float")
    given = parser.parse_args()
    names = given.target or [name for name, row in targets().items() if row.runner]
    print("| model | target | digest | instructions | code | RAM | stack |")
    print("|---|---|---|--:|--:|--:|--:|")
    for model in map(Path, given.models):
        for name in names:
            print(f"| {model.stem} | {name} | {line(model, name, given.arithmetic)} |", flush=True)


def line(model: Path, target: str, arithmetic: str | None) -> str:
    """The cells of one network on one target, or why there are none."""
    if why := missing(find(target)):
        return why
    try:
        bundle = tenon.compile(model, target=target, arithmetic=arithmetic, no_tuning=True)
        manifest = bundle.manifest({}, compiled=False)
        counted = count(bundle, [fixed_feeds(manifest.inputs)])
    except TenonError as error:
        return str(error).splitlines()[0]
    (outputs,) = counted.outputs
    digest = answer_digest(outputs[t.name] for t in manifest.outputs)[:SHOWN]
    stack = "" if bundle.stack is None else f"{bundle.stack:,}"
    memory, code = manifest.memory, sizes(bundle.object).code
    return f"{digest} | {counted.instructions[0]:,} | {code:,} | {memory.peak:,} | {stack}"


if __name__ == "__main__":
    main()
