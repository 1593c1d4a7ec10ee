"""Find the workers at an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tenon.errors import InputError
from tenon.tools.cluster.pool import ThisProcess, WorkerPool


@contextmanager
def open_pool(address: str | None) -> Iterator[WorkerPool]:
    """The workers of a Dask scheduler at ``address`` (tcp://host:8786), of new processes here ("local", "local:4"), or
    this process (None).

    Raises InputError if Dask is not installed, or there is no scheduler or worker of this Tenon's version.
    """
    if address is None:
        yield ThisProcess()
        return
    try:
        from tenon.tools.cluster import dask_pool
    except ImportError as error:
        raise InputError(f"--cluster {address}: {error.name} is missing: pip install {error.name}") from None
    with dask_pool.connected(address) as pool:
        yield pool
