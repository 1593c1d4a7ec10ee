"""Work on several processes: results in order and equal to one process's, a worker that is killed, errors."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import tenon
from onnx_models import model, node
from real import ROOT
from tenon.compilation import resolved
from tenon.errors import InputError, ResourceError
from tenon.machine.targets import find
from tenon.machine.targets.runner import Local
from tenon.network.graph.text import show
from tenon.options import Options
from tenon.pipeline import tune
from tenon.tools import cluster
from tenon.tools.cluster import WorkItem, content_key, open_pool
from tenon.tools.cluster.pool import ThisProcess, Worker, WorkerPool, ordered
from tenon.tools.deployment.evaluation import evaluate
from tenon.tools.tune import search as search_module
from tenon.tools.tune.search import Bench, check_workers

pytest.importorskip("distributed", reason="Dask is an optional dependency: pip install distributed")


def square(number: int, die: str = "") -> int:
    """Kills its process, if ``die`` is a file that is not there yet, or "always"."""
    if die and (die == "always" or not Path(die).exists()):
        if die != "always":
            Path(die).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def refuse(number: int) -> int:
    raise InputError(f"{number} is refused")


def items(count: int, die: str = "") -> list[WorkItem]:
    """The third kills its process."""
    calls = [(n, die if n == 3 else "") for n in range(count)]
    return [WorkItem(content_key("square", *call), square, call) for call in calls]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with open_pool("local:2") as pool:
        yield pool


def test_results_are_those_of_one_process(pool: WorkerPool) -> None:
    work = [*items(6), items(6)[2]]
    with open_pool(None) as here:
        assert list(ordered(pool, work)) == list(ordered(here, work)) == [0, 1, 4, 9, 16, 25, 4]
    assert pool.workers == (Worker.here(),) * 2


def test_a_killed_worker_loses_nothing(pool: WorkerPool, tmp_path: Path) -> None:
    assert list(ordered(pool, items(8, str(tmp_path / "killed")))) == [n * n for n in range(8)]
    assert (tmp_path / "killed").exists()


def test_an_error_of_an_item_is_raised_here(pool: WorkerPool) -> None:
    with pytest.raises(InputError, match="7 is refused"):
        list(pool.results([WorkItem("refused", refuse, (7,))]))
    assert list(ordered(pool, items(2))) == [0, 1]


def kill_workers(folder: Path, count: int) -> None:
    """Kill the first workers that this process starts, at once."""
    psutil = pytest.importorskip("psutil")
    killed: set[int] = set()
    while len(killed) < count and not (folder / "end").exists():
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if child.pid not in killed and any("spawn_main" in word for word in child.cmdline()):
                    child.kill()
                    killed.add(child.pid)
        time.sleep(0.02)  # less than a process takes to start, and leaves the processor to it


@pytest.mark.parametrize("count", [1, 1000])
def test_workers_that_are_killed_while_they_start(count: int, tmp_path: Path) -> None:
    killer = Thread(target=kill_workers, args=(tmp_path, count))
    killer.start()
    try:
        ends = pytest.raises(ResourceError, match="workers end as soon as they are started")
        with nullcontext() if count == 1 else ends, open_pool("local:2") as pool:
            assert list(ordered(pool, items(4))) == [0, 1, 4, 9]
    finally:
        (tmp_path / "end").touch()
        killer.join()


def test_schedulers_with_tls(tmp_path: Path) -> None:
    """Dask's own configuration says which certificates are used."""
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ("-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True)
    roles = ("scheduler", "worker", "client")
    pairs = {f"tls_{role}_{kind}": str(file) for role in roles for kind, file in (("cert", cert), ("key", key))}
    security = Security(tls_ca_file=str(cert), require_encryption=True, **pairs)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with LocalCluster(protocol="tls://", security=security, **options) as made_cluster:
        address = made_cluster.scheduler_address
        with pytest.raises(InputError, match=r"TLS needs certificates.*CA_FILE"), open_pool(address):
            pass
        names = {"ca-file": cert, "client.cert": cert, "client.key": key}
        with (
            dask.config.set({f"distributed.comm.tls.{name}": str(file) for name, file in names.items()}),
            open_pool(address) as pool,
        ):
            assert list(ordered(pool, items(4))) == [0, 1, 4, 9]


@pytest.mark.slow
def test_an_item_that_kills_every_worker() -> None:
    with open_pool("local:2") as pool, pytest.raises(ResourceError, match="ended 3 workers"):
        list(pool.results(items(4, "always")))


@pytest.mark.slow
def test_another_cluster_on_this_machine_is_no_matter() -> None:
    """The port of Dask's pages may be taken; warnings are errors here."""
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        except OSError:
            pass  # taken by another cluster, indeed
        with open_pool("local:1") as pool:
            assert list(pool.results(items(1))) == [(0, 0)]


def test_keys_are_of_the_content() -> None:
    assert content_key("a", 1, b"x") == content_key("a", 1, b"x")
    different = [content_key(*parts) for parts in (("a", 1, b"x"), ("b", 1, b"x"), ("a", 1), ("a", "1"), ("a", b"1x"))]
    assert len(set(different)) == 5


@pytest.mark.parametrize(
    ("address", "words"),
    [("local:0", "from 1 to 256"), ("local:x", "from 1 to 256"), ("tcp://127.0.0.1:1", "no scheduler answers there")],
)
def test_addresses_that_do_not_work(address: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon.tools.cluster.dask_pool._SECONDS", 1)
    with pytest.raises(InputError, match=f"--cluster {address}: .*{words}"), open_pool(address):
        pass


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "tenon.tools.cluster.dask_pool", raising=False)
    monkeypatch.delattr(cluster, "dask_pool", raising=False)
    with pytest.raises(InputError, match="pip install distributed"), open_pool("local"):
        pass


# ------------------------------------------------------------------------------------------------- tuning
def network() -> bytes:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4, 3, 3), np.float32), "v": rng.standard_normal((8, 8, 1, 1), np.float32)}
    nodes = [node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]), node("Conv", ["h", "v"], ["y"])]
    made: bytes = model(nodes, {"x": [1, 4, 6, 6]}, ["y"], weights).SerializeToString()
    return made


@pytest.mark.slow
def test_tuning_on_workers_fills_the_table(tmp_path: Path) -> None:
    changes: Any = {"tuning": tmp_path / "tuning.sqlite", "target": "host"}
    tuned = list(tune(network(), cluster="local:2", **changes))
    assert len(tuned) == 2
    assert all(len(layer.seconds) > 1 and layer.best > 0 for layer in tuned)
    again = list(tune(network(), **changes))
    assert again == tuned, "the table has them: nothing is measured here"


class Backwards(ThisProcess):
    """A pool whose last item ends first."""

    def results(self, items: Any) -> Iterator[tuple[int, Any]]:
        yield from reversed(list(super().results(items)))


def test_layers_are_in_their_order_whichever_is_measured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "measure", lambda job, bench: {c.key: 1.0 for c in job.candidates})
    here = list(tune(network(), tuning=tmp_path / "here.sqlite"))
    monkeypatch.setattr("tenon.pipeline.open_pool", lambda address: nullcontext(Backwards()))
    there = list(tune(network(), tuning=tmp_path / "there.sqlite", cluster="any"))
    assert [layer.layer for layer in here] == [layer.layer for layer in there]
    assert here == there


class Workers:
    """A pool of these workers."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = workers

    def results(self, items: Any) -> Iterator[tuple[int, Any]]:
        yield from ()


def test_workers_must_be_alike() -> None:
    target = find("x86-64-avx2")
    assert target.host
    good = replace(Worker.here(), family="x86-64", system="linux", features=target.host.features)
    bench = Bench(resolved(Options(), target))
    check_workers(Workers(good, good), bench)
    with pytest.raises(InputError, match="1 of 2 workers do not execute code for x86-64-avx2"):
        check_workers(Workers(good, replace(good, features=frozenset())), bench)
    with pytest.raises(InputError, match=r"different processors \(A, B\)"):
        check_workers(Workers(replace(good, model="A"), replace(good, model="B")), bench)
    check_workers(Workers(replace(good, model="A"), replace(good, model="B")), replace(bench, runner=Local()))


# ------------------------------------------------------------------------------------------------- fuzzing
@pytest.mark.slow
def test_fuzzing_on_workers_reports_what_one_machine_does() -> None:
    def report(*words: str) -> dict[str, Any]:
        command = ["scripts/fuzz", "--graphs", "60", "--seed", "30", "--compiler", "zig", "--json", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        content: dict[str, Any] = json.loads(done.stdout)
        return content

    assert report("--cluster", "local:2") == report()


# ------------------------------------------------------------------------------------------------- calibration
class Parts(ThisProcess):
    """Two workers of this kind, whose parts are pickled as for other processes."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        return (Worker.here(),) * 2

    def results(self, items: Any) -> Iterator[tuple[int, Any]]:
        for number, item in reversed(list(enumerate(items))):
            function, arguments = pickle.loads(pickle.dumps((item.function, item.arguments)))
            yield number, function(*arguments)


@pytest.mark.parametrize(
    "through", ["parts", pytest.param("local:2", marks=pytest.mark.slow)], ids=["in parts", "processes"]
)
def test_calibration_on_workers_gives_the_same_network(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extremes in the order of the samples (moving averages) and histograms (entropy)."""
    graph = tenon.load(network())
    samples = np.random.default_rng(1).standard_normal((11, 1, 4, 6, 6)).astype(np.float32)
    samples[3] *= 20
    if through == "parts":
        monkeypatch.setattr("tenon.tools.quantization.post_training.open_pool", lambda address: nullcontext(Parts()))
    for method in ("moving-average", "entropy"):
        how: Any = {"method": method, "range_search": False, "rounding": "nearest", "equalisation": False}
        here = tenon.quantize(graph, list(samples), **how)
        there = tenon.quantize(graph, list(samples), **how, cluster=through)
        assert show(there.graph) == show(here.graph)
        assert there.report == here.report


def test_evaluation_on_workers_gives_the_same_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon.tools.deployment.evaluation.open_pool", lambda address: nullcontext(Parts()))
    bundle = tenon.compile(network(), threads=1)
    samples = list(np.random.default_rng(2).standard_normal((37, 1, 4, 6, 6)).astype(np.float32))
    truth = [int(n) for n in np.random.default_rng(3).integers(0, 288, 37)]
    seen: list[int] = []
    there = evaluate(bundle, samples, ground_truth=truth, cluster="any", step=seen.append)
    assert there == evaluate(bundle, samples, ground_truth=truth)
    assert seen == list(range(1, 38))
    with pytest.raises(InputError, match="samples go to workers for models"):
        evaluate(tenon.load(network()), samples, ground_truth=truth, cluster="any")
