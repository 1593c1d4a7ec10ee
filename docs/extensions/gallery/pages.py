"""The pages of the gallery, written from the descriptions of the models and from what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gallery.measure import Result
from gallery.models import RESULTS, File, Model, read_absent, read_models

GENERATED = RESULTS.parent / "generated"
IMAGES = GENERATED / "images"


def read_result(model: Model) -> Result | None:
    """The measurements of a model; None before it was measured."""
    path = RESULTS / f"{model.name}.json"
    return Result(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def write_pages(folder: Path = GENERATED) -> list[Path]:
    """Write all pages and the table of the index; pages of models that are gone are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    models = read_models()
    texts = {f"{model.name}.md": page(model, read_result(model), folder) for model in models}
    texts["models.md"] = index([(model, read_result(model)) for model in models])
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in folder.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    return [folder / name for name in texts]


def page(model: Model, result: Result | None, folder: Path = GENERATED) -> str:
    """The page of a model.  The picture is shown where it was made."""
    parts = [
        f"# {model.title}",
        model.about,
        "```console\n$ " + model.shown + "\n" + (result.output if result else "") + "```",
    ]
    if model.draw and (folder / "images" / model.image).exists():
        parts.append(f"![The image with the answer](images/{model.image})")
    if model.note:
        parts.append(model.note)
    parts += ["## Files", _table(("file", "source", "licence"), map(_file, model.files)), _sums(model)]
    if result:
        if result.variants:
            parts += ["## Size and time", _table(_COLUMNS, map(_variant, result.variants)), _measured(result)]
        parts += [_quantised(model, row) for row in result.variants if "quantize" in row]
        refusals = [f"{row['peer_refuses']}." for row in result.variants if "peer_refuses" in row]
        parts += [f"The peer does not run it: {text}" for text in refusals]
        if result.targets:
            rows = [(f"`{target}`", said) for target, said in result.targets.items()]
            parts += [
                "## Targets",
                _TARGETS,
                _table(("target", "result"), rows),
            ]
    return "\n\n".join(parts) + "\n"


_TARGETS = (
    "The same command with `--target`, on emulators. Scores of 8-bit networks may differ by 0.01 on microcontrollers, "
    "which compute as TFLite Micro does, where other targets compute as ONNX defines it."
)
_COLUMNS = ("type", "file", "weights", "RAM", "code", "multiply-adds", "Tenon", "peer", "peer's time", "cosine")


def _variant(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["type"],
        f"`{row['file']}`",
        _bytes(row["weights"]),
        _bytes(row["ram"]),
        _bytes(row["code"]),
        f"{row['macs'] / 1e6:.2f} M",
        _time(row, "median_ms", "min_ms"),
        row.get("peer", "—"),
        _time(row, "peer_median_ms", "peer_min_ms"),
        f"{row['cosine']:.6f}" if row.get("cosine") is not None else "—",
    )


def _quantised(model: Model, row: dict[str, Any]) -> str:
    """How a variant was made, and its answer."""
    command = f"{model.command.replace(model.words[1], row['file'])} {row.get('options', '')}".rstrip()
    return f"```console\n$ {row['quantize']}\n$ tenon {command}\n{row['output']}```"


def _measured(result: Result) -> str:
    return (
        f"Medians (and minima) of interleaved repetitions in one thread, on random input; measured on {result.date} on "
        f"{result.processor}. RAM is all writable memory of the bundle; cosine is the similarity of the outputs to the "
        "peer's."
    )


def _sums(model: Model) -> str:
    """The checksums as sha256sum lists and checks them."""
    return "```text\n" + "".join(f"{file.sha256}  {file.called}\n" for file in model.files if not file.ours) + "```"


def _file(file: File) -> tuple[str, ...]:
    name = f"`{file.called}`"
    if file.content:
        lines = file.content.splitlines()
        return name, "text: " + ", ".join(lines), "ours"
    if file.frames_of:
        return name, f"an animation that pans over `{file.frames_of}`", "ours"
    if file.picture:
        return name, "image with the text " + " / ".join(file.picture), "ours"
    source = f"[{file.called}]({file.source})" if file.source else f"PyPI `{file.package}`: `{file.member}`"
    return name, source, file.licence


def index(models: Sequence[tuple[Model, Result | None]]) -> str:
    """All models as a table, and what could not be had; ``docs/gallery/index.md`` includes it."""
    columns = ("model", "task", "answer", "weights", "RAM", "Tenon", "peer", "targets")
    parts = [_table(columns, (_row(model, result) for model, result in models))]
    rows = [(entry["name"], entry["why"], _linked(entry.get("instead", "—"))) for entry in read_absent()]
    parts += ["## What could not be had", _table(("model", "why", "shown instead"), rows)]
    return "\n\n".join(parts) + "\n"


def _linked(text: str) -> str:
    """Links to pages as the index has them."""
    return re.sub(r"\]\((?=[\w-]+\.md\))", "](generated/", text)


def _row(model: Model, result: Result | None) -> tuple[str, ...]:
    link = f"[{model.title}](generated/{model.name}.md)"
    about = (link, model.task, ", ".join(model.expect))
    if result is None or not result.variants:
        return (*about, *["—"] * 5)
    row = result.variants[0]
    same = [target for target, said in result.targets.items() if said == "same answer"]
    peer = f"{row['peer_median_ms']:.3g} ms {row['peer']}" if "peer_median_ms" in row else "—"
    times = (_bytes(row["weights"]), _bytes(row["ram"]), f"{row['median_ms']:.3g} ms", peer)
    return (*about, *times, ", ".join(same) or "host")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in [" | ".join(columns), " | ".join(["---"] * len(columns)), *lines])


def _bytes(count: int | None) -> str:
    if count is None:
        return "—"
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.2f} MiB"


def _time(row: dict[str, Any], median: str, least: str) -> str:
    if median not in row:
        return "—"
    return f"{row[median]:.3f} ms ({row[least]:.3f})"
