"""Child processes, which are ended with all their children if the caller stops waiting for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock


class Children:
    """The programs of one owner.  Threads may run some at the same time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._present: set[subprocess.Popen[bytes]] = set()

    def run(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, bytes]:
        """The exit status of a program that runs in ``folder``, and what it wrote to standard error.  The status is 0
        where this process ignores SIGCHLD, because the system then keeps none.

        Raises OSError if it cannot be started.
        """
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_restore_signal if _is_ignored() else None,
        )
        try:
            with self._lock:
                self._present.add(child)
            message = child.communicate()[1]
        except BaseException:
            _end(child)
            raise
        finally:
            with self._lock:
                self._present.discard(child)
        return child.returncode, message

    def stop(self) -> None:
        """End all that run.  Whoever waits for them finds that a signal ended them."""
        with self._lock:
            for child in self._present:
                _kill(child)


def _is_ignored() -> bool:
    """Whether this process ignores SIGCHLD, as daemons do."""
    return hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def _restore_signal() -> None:
    """Compilers wait for their own children, which they could not if they ignored the signal as well."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _end(child: subprocess.Popen[bytes]) -> None:
    _kill(child)
    child.communicate()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The whole session that it leads: compilers are drivers that start other programs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
