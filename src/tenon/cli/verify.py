"""``tenon verify``: compare the result for a fixed input, on the target, with that of the references."""

from __future__ import annotations

from typing import Any

import tenon
from tenon.cli.console import console, note, print_json, stages
from tenon.cli.model_source import ModelArgument, open_engine
from tenon.errors import InputError
from tenon.options import Options
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.verify import Verdict, verify


def verify_model(source: ModelArgument, options: dict[str, Any], *, as_json: bool) -> None:
    """Print the digests.  Raises InputError if they differ, or if there is no expected digest."""
    verdict = _bundle(source, options) if source.bundle else _model(source, options)
    if as_json:
        print_json({"digest": verdict.digest, "expected": verdict.expected or None})
    else:
        console.print(f"digest    {verdict.digest}\nexpected  {verdict.expected or 'not stated'}", markup=False)
    if not verdict.expected:
        raise InputError(
            f"{source.model}: its results are not identical on every machine, because some operators round floats: "
            "'tenon inspect' lists the operators of a quantised model that remain in float"
        )
    if not verdict.right:
        raise InputError(f"{source.model}: the result for the fixed input differs from that of the references")


def _bundle(source: ModelArgument, options: dict[str, Any]) -> Verdict:
    with open_engine(source, options) as engine:
        return verify(engine.manifest, engine.run)


def _model(source: ModelArgument, options: dict[str, Any]) -> Verdict:
    with stages(f"compiling {source.name}") as progress:
        bundle = tenon.compile(source.load(progress), Options.from_environment(**options), progress=progress)
        progress("run")
        device = RemoteBundle(bundle)
        if device.emulated:
            note(f"{source.name} for {bundle.target.name} runs on an emulator, {device.where}")
        manifest = device.manifest._replace(answer=bundle.answer)
        return verify(manifest, lambda feeds: device.run([feeds])[0])
