"""``tenon sdk``: libtenon for a target, with its headers."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from tenon.cli.console import console, print_json, size, stages, table
from tenon.machine.targets import find
from tenon.options import Options
from tenon.runtime.sdk import save_sdk


def write_sdk(target: str | None, compiler: str | None, out: Path, *, as_json: bool) -> None:
    began = perf_counter()
    options = Options.from_environment(target=target, compiler=compiler)
    row = find(options.target)
    with stages(f"building libtenon for {row.name}"):
        folder = save_sdk(out, options.target, options)
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    if as_json:
        return print_json({"target": row.name, "files": files})
    console.print(
        f"{str(out).rstrip('/')}/ in {perf_counter() - began:.1f} s, for {row.name}", markup=False, soft_wrap=True
    )
    shown = table("", "", right=(1,))
    for name, count in files.items():
        shown.add_row(name, size(count))
    return console.print(shown)
