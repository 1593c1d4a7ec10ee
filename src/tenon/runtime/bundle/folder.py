"""Write a folder of files atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from tenon.atomic_write import Content, created_folder, fresh_folder, remove_folder
from tenon.errors import BundleError, InputError
from tenon.runtime.bundle.manifest import names_in


def refuse_foreign(folder: Path) -> None:
    """Raises InputError for a folder that a bundle may not replace: a file, or a folder that holds other files."""
    present = _present(folder)
    if not present:
        return
    try:
        known = names_in(folder)
    except BundleError as error:
        raise InputError(f"{folder} is not empty and not a bundle; nothing was written ({error})") from None
    if foreign := sorted(present - known):
        raise InputError(
            f"{folder} holds files that are no part of its bundle ({', '.join(foreign[:3])}): move them away, "
            "because the whole folder is replaced"
        )


def refuse_others(folder: Path, files: AbstractSet[str], bundles: AbstractSet[str]) -> None:
    """Raises InputError for a folder with anything but these files and folders of bundles."""
    if foreign := sorted(_present(folder) - files - bundles):
        raise InputError(
            f"{folder} holds files that would not be written again ({', '.join(foreign[:3])}): move them away, because "
            "the whole folder is replaced"
        )
    for name in sorted(bundles):
        refuse_foreign(folder / name)


def write_folder(
    folder: Path,
    files: Mapping[str, Content],
    executable: frozenset[str],
    refuse: Callable[[Path], None] = refuse_foreign,
) -> Path:
    """Replace the content of ``folder`` by these files; those in ``executable`` get execute permission.

    A temporary folder is written and renamed, so an error or an interrupt leaves the old content.  An older bundle is
    replaced.  Raises InputError for a folder that ``refuse`` raises it for, or one that cannot be written.
    """
    try:
        folder = folder.resolve()
        refuse(folder)
        with created_folder(folder.parent), fresh_folder(folder.parent, ".tenon-") as fresh:
            for name, content in files.items():
                (fresh / name).parent.mkdir(exist_ok=True)
                (fresh / name).write_bytes(content)
                if name in executable:
                    (fresh / name).chmod((fresh / name).stat().st_mode | 0o111)
            _swap(fresh, folder)
    except ValueError as error:
        raise InputError(f"{str(folder)!r} is not the name of a folder: {error}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write {folder}: {reason}: choose a folder that can be written, or make room"
        ) from error
    return folder


def _present(folder: Path) -> set[str]:
    """The names of the files in a folder.  Raises InputError for a file."""
    if file := next((parent for parent in folder.parents if parent.is_file()), None):
        raise InputError(f"{file} is a file: choose another folder for the bundle")
    if not folder.exists():
        return set()
    if not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder for the bundle")
    return {path.name for path in folder.iterdir()}


def _swap(fresh: Path, folder: Path) -> None:
    """Rename ``fresh`` to ``folder``; an interrupt between the two renames restores the old folder."""
    old = fresh.with_name(fresh.name + ".old")
    try:
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        if folder.exists():
            remove_folder(old)
