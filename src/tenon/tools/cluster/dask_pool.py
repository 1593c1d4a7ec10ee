"""Workers of Dask's distributed scheduler, which holds the queue, and gives items of workers that died to others."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, LocalCluster, as_completed
from distributed.scheduler import KilledWorker

from tenon import __version__
from tenon.errors import DeviceError, InputError, ResourceError, TenonError
from tenon.tools.cluster.pool import Worker
from tenon.tools.cluster.work import WorkItem

_SECONDS = 30
"""Within which a scheduler must answer, and a first worker be there."""

_DEATHS = 3
"""Workers that an item may end."""

_BROKEN = (OSError, RuntimeError, KilledWorker, TimeoutError)
"""Exceptions of calls to workers whose connection ends."""

_REPETITIONS = 2
"""Repetitions of an item that failed for a reason outside of it."""


class DaskPool:
    """The workers of a client's scheduler."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def workers(self) -> Sequence[Worker]:
        for last in range(_DEATHS - 1, -1, -1):
            try:
                return tuple(self._client.run(Worker.here).values())
            except _BROKEN:  # a worker ended meanwhile
                if not last:
                    raise
                self._client.wait_for_workers(1, timeout=_SECONDS)
        raise AssertionError

    def results(self, items: Sequence[WorkItem]) -> Iterator[tuple[int, Any]]:
        numbers: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            numbers.setdefault(item.key, []).append(number)
        futures = [
            self._client.submit(
                _called,
                items[which[0]].function,
                items[which[0]].arguments,
                key=key,
                retries=_REPETITIONS,
                resources=dict(items[which[0]].resources) or None,
                pure=True,
            )
            for key, which in numbers.items()
        ]
        try:
            for future in as_completed(futures):
                outcome = _outcome(future)
                for number in numbers[future.key]:
                    yield number, outcome
        finally:
            self._client.cancel(futures, force=True)


def _outcome(future: Any) -> Any:
    try:
        result, error = future.result()
    except KilledWorker as killed:
        raise ResourceError(f"an item of work ended {_DEATHS} workers: see their memory, and their logs") from killed
    if error is not None:
        raise error
    return result


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, TenonError | None]:
    """The result, or an error of the item itself: others make the scheduler repeat it."""
    try:
        return function(*arguments), None
    except (DeviceError, ResourceError):
        raise
    except TenonError as error:
        return None, error


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect garbage before, and not inside.

    A client that could not connect stops its loop when it is collected, for which it takes a lock of its class that is
    not re-entrant; where another client holds this lock in the same thread, as it starts or stops, both would wait
    for ever.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _client(address: str | LocalCluster) -> Client:
    with _without_collection():
        return Client(address, timeout=_SECONDS)


@contextmanager
def _closed(resource: Any) -> Iterator[Any]:
    """The client or cluster, closed afterwards."""
    try:
        yield resource
    finally:
        with _without_collection():
            resource.close()


@contextmanager
def connected(address: str) -> Iterator[DaskPool]:
    """A pool at an address, or of new processes ("local:N")."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with dask.config.set({"distributed.scheduler.allowed-failures": _DEATHS - 1}):
        if address.partition(":")[0] == "local":
            with _closed(_started(address)) as cluster, _closed(_client(cluster)) as client:
                yield _checked(client, address)
            return
        try:
            client = _client(address)
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(f"--cluster {address}: no scheduler answers there: {error}") from None
        except TypeError:
            raise InputError(
                f"--cluster {address}: TLS needs certificates: name them in Dask's configuration "
                "(DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__TLS__CLIENT__CERT and ...__TLS__CLIENT__KEY)"
            ) from None
        with _closed(client):
            yield _checked(client, address)


def _started(address: str) -> LocalCluster:
    """New processes; again where one of them ended while it was started."""
    for last in range(_DEATHS - 1, -1, -1):
        try:
            with _without_collection():
                return _local(address)
        except RuntimeError as error:
            if not last:
                raise _ended(address) from error
    raise AssertionError


def _ended(address: str) -> ResourceError:
    return ResourceError(
        f"--cluster {address}: workers end as soon as they are started: see their memory, and their logs"
    )


def _local(address: str) -> LocalCluster:
    text = address.partition(":")[2] or "2"
    if not text.isdigit() or not 0 < int(text) <= 256:
        raise InputError(f"--cluster {address}: local:N has a number of processes from 1 to 256")
    return LocalCluster(
        n_workers=int(text),
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        silence_logs=logging.CRITICAL,
        memory_limit=0,
    )


def _checked(client: Client, address: str) -> DaskPool:
    """The pool, if its workers can do the work."""
    try:
        client.wait_for_workers(1, timeout=_SECONDS)
    except TimeoutError:
        raise InputError(f"--cluster {address}: the scheduler has no worker: start one with `dask worker`") from None
    try:
        pool = DaskPool(client)
        versions = {worker.version for worker in pool.workers}
    except _BROKEN as error:
        raise _ended(address) from error
    except ImportError as error:
        raise InputError(f"--cluster {address}: a worker has no {error.name}: pip install {error.name} there") from None
    if versions != {__version__}:
        raise InputError(f"--cluster {address}: workers have Tenon {', '.join(sorted(versions))}, not {__version__}")
    return pool
