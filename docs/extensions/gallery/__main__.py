"""``scripts/gallery``: run the models of the gallery, keep what they measure, and write the pages."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gallery.files import AbsentError, fetch, lay_out
from gallery.measure import alike, answer, measure, save, wrong
from gallery.models import Model, read_models
from gallery.pages import IMAGES, read_result, write_pages

VARIABLE = "TENON_GALLERY_MODELS"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    models = [model for model in read_models() if not options.names or model.name in options.names]
    if unknown := set(options.names) - {model.name for model in models}:
        print(f"gallery: there is no page {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    folders = options.models or [Path(p) for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    if options.fetch:
        fetch(models, options.fetch)
        folders = [*folders, options.fetch]
    failures = 0
    if options.check or options.measure or options.images:
        for model in models:
            failures += not _run(model, folders, options)
    print(f"{len(write_pages())} pages in {IMAGES.parent}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gallery", description=__doc__)
    parser.add_argument("names", nargs="*", help="Pages, by the names of their files (all).")
    parser.add_argument(
        "--models", type=Path, nargs="+", metavar="DIR", help=f"Folders with the models' files ({VARIABLE})."
    )
    parser.add_argument(
        "--fetch", type=Path, metavar="DIR", help="Download models that come in packages to this folder."
    )
    parser.add_argument("--check", action="store_true", help="Run the commands and compare with what the pages show.")
    parser.add_argument("--measure", action="store_true", help="Measure sizes, times and targets anew, and keep them.")
    parser.add_argument("--images", action="store_true", help="Make the images of the pages.")
    return parser


def _run(model: Model, folders: Sequence[Path], options: argparse.Namespace) -> bool:
    """Whether all is well; a model whose files are absent is named and passed over."""
    try:
        if options.measure:
            save(model, measure(model, folders, IMAGES if options.images else None))
        else:
            check(model, folders, IMAGES if options.images else None)
    except AbsentError as error:
        print(f"{model.name}: left out: {error}")
        return True
    except RuntimeError as error:
        print(f"{model.name}: WRONG: {error}")
        return False
    print(f"{model.name}: right", flush=True)
    return True


def check(model: Model, folders: Sequence[Path], images: Path | None = None) -> None:
    """Run a model's command.  Raises AbsentError without its files, and RuntimeError if the answer is not right or not
    what the page shows."""
    with tempfile.TemporaryDirectory() as temporary:
        lay_out(model, folders, Path(temporary))
        if images is not None:
            images.mkdir(parents=True, exist_ok=True)
        output = answer(model, Path(temporary), draw=images and images.resolve() / model.image)
    if missing := wrong(model, output):
        raise RuntimeError(f"the output lacks {missing[0]!r}:\n{output}")
    result = read_result(model)
    if result is not None and not alike(result.output, output):
        raise RuntimeError(f"the page shows\n{result.output}and the command prints\n{output}")


if __name__ == "__main__":
    sys.exit(main())
