"""Bundles on devices: versions side by side, of which ``current`` links to one.

    PLACE/bundles/NAME/VERSION/...      VERSION is a digest of the files
    PLACE/bundles/NAME/current          a symbolic link, replaced by a rename

A version is written under another name and renamed when its files are there and the check has passed, so that whoever
opens ``current`` always finds a whole bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tenon.errors import DeviceError, InputError
from tenon.tools.devices.remote import Connection, RemoteSession

KEEP = 3
"""Versions that stay on a device, with the current one."""

_VERSION = re.compile(r"[0-9a-f]{12}")

Check = Callable[[RemoteSession], None]
"""Runs what was pushed, in its folder.  Raises TenonError if that fails."""


@dataclass(frozen=True)
class Deployed:
    """A bundle on a device: ``previous`` is the version before it, "" if there was none; ``pushed`` the bytes sent;
    ``checked`` is false for a bundle that could not be run there before it became current."""

    device: str
    name: str
    version: str
    previous: str
    folder: str
    pushed: int
    checked: bool = True


def version_of(files: Mapping[str, bytes]) -> str:
    """The version of a bundle with these files."""
    rows = [f"{name}\0{hashlib.sha256(content).hexdigest()}\n" for name, content in sorted(files.items())]
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:12]


def deploy(
    connection: Connection,
    name: str,
    files: Mapping[str, bytes],
    *,
    executable: str = "",
    check: Check = lambda session: None,
    keep: int = KEEP,
) -> Deployed:
    """Push ``files``, check them, and make them the current version of bundle ``name``; a version that is there already
    is not pushed again.  After an error the current version is what it was.

    ``executable`` may be run there.  Of older versions ``keep`` - 1 stay.  Raises DeviceError, and what ``check``
    raises.
    """
    if keep < 1:
        raise InputError(f"keep={keep}: the version that is deployed is kept")
    root, version = _root(connection, name), version_of(files)
    previous, there = state(connection, name)
    pushed = ""
    if version not in there:
        pushed = _push(connection, root, files, executable, check)
    rest = [old for old in there if old != version][keep - 1 :]
    _activate(connection, root, version, pushed, rest)
    sent = sum(map(len, files.values())) if pushed else 0
    return Deployed(connection.spec.name, name, version, previous, f"{root}/current", sent)


def rollback(connection: Connection, name: str) -> Deployed:
    """Make the version before the current one current again.  Raises InputError if there is none."""
    root, (now, there) = _root(connection, name), state(connection, name)
    earlier = [version for version in there if version != now]
    if not earlier:
        raise InputError(f"device '{connection.spec.name}' has no earlier version of '{name}'")
    _activate(connection, root, earlier[0])
    return Deployed(connection.spec.name, name, earlier[0], now, f"{root}/current", 0)


def state(connection: Connection, name: str) -> tuple[str, list[str]]:
    """The current version, "" if there is none, and all versions, the one that became current last first."""
    root = shlex.quote(_root(connection, name))
    lines = connection.call(f"[ -d {root} ] && {{ readlink {root}/current || echo none; ls -1t {root}; }}").text.split()
    versions = [line for line in lines[1:] if _VERSION.fullmatch(line)]
    return (lines[0] if lines and lines[0] in versions else ""), versions


def _root(connection: Connection, name: str) -> str:
    return f"{connection.spec.place}/bundles/{name}"


def _push(connection: Connection, root: str, files: Mapping[str, bytes], executable: str, check: Check) -> str:
    """Write the files to a new folder, check them, and return it.  What broken pushes left an hour ago is removed."""
    incoming = f"{root}/incoming-{os.urandom(4).hex()}"
    connection.make_folder(incoming)
    try:
        connection.send(incoming, files)
        _compare(connection, incoming, files, executable)
        check(RemoteSession(connection, incoming))
    except BaseException:
        with suppress(DeviceError):  # a device that is gone keeps it until a later deployment
            connection.call(f"rm -rf {shlex.quote(incoming)}")
        raise
    return incoming


def _compare(connection: Connection, folder: str, files: Mapping[str, bytes], executable: str) -> None:
    """Raise DeviceError if a file there is not what was sent."""
    names = " ".join(shlex.quote(name) for name in files)
    mode = f"chmod 755 {shlex.quote(executable)} && " if executable else ""
    done = connection.call(f"cd {shlex.quote(folder)} && {mode}sha256sum {names}")
    if done.status:  # no sha256sum
        there = {name: hashlib.sha256(connection.fetch(f"{folder}/{name}")).hexdigest() for name in files}
    else:
        there = {line[66:].strip(): line[:64] for line in done.text.splitlines()}
    for name, content in files.items():
        if there.get(name) != hashlib.sha256(content).hexdigest():
            raise DeviceError(f"device '{connection.spec.name}': {folder}/{name} is not what was sent: deploy again")


def _activate(connection: Connection, root: str, version: str, pushed: str = "", rest: Sequence[str] = ()) -> None:
    """Rename the folder that was pushed to its version, point ``current`` to it, and remove the rest.

    Every step may be repeated.  Not every mv has -T, without which a link to a folder is not replaced.
    """
    link = f"{root}/link-{os.urandom(4).hex()}"
    new, old, folder = (shlex.quote(each) for each in (link, f"{root}/current", f"{root}/{version}"))
    rename = f"{{ [ -d {folder} ] || mv {shlex.quote(pushed)} {folder}; }} && " if pushed else ""
    removed = "".join(f" {shlex.quote(f'{root}/{each}')}" for each in rest)
    old_pushes = f"find {shlex.quote(root)} -maxdepth 1 -name 'incoming-*' -mmin +60 -exec rm -rf {{}} + 2>/dev/null"
    connection.check(
        f"{rename}touch {folder} && ln -sf {version} {new} && "
        f"{{ mv -fT {new} {old} 2>/dev/null || {{ rm -f {new}; ln -sfn {version} {old}; }}; }} && "
        f"rm -rf {new}{removed}; status=$?; {old_pushes}; [ $status = 0 ]"
    )
