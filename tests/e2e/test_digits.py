"""The digit network as a compiled bundle: accuracy on held-out digits, equal results on every target."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import tenon
from on_targets import COMPILED, selected, skip_without_device
from real import DIGITS, held_out_digits
from tenon.network.graph.graph import Array
from tenon.runtime.engine.device import RemoteBundle

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def host_answers() -> Array:
    images, _ = held_out_digits()
    with tenon.open(tenon.compile(DIGITS / "digits.onnx")) as engine:
        return np.stack([engine.run(image)["probabilities"] for image in images])


def test_accuracy_is_at_least_97_percent(host_answers: Array) -> None:
    _, labels = held_out_digits()
    right = (host_answers[:, 0].argmax(1) == labels).mean()
    assert right >= 0.97


@pytest.mark.parametrize("target", selected(COMPILED))
def test_results_are_equal_on_every_target(target: str, host_answers: Array) -> None:
    """The order of summation does not depend on lanes, but multiply-adds may be fused or rounded separately."""
    skip_without_device(target)
    images, _ = held_out_digits()
    device = RemoteBundle(tenon.compile(DIGITS / "digits.onnx", target=target))
    answers = np.stack([a["probabilities"] for a in device.run(list(images[:60]))])
    np.testing.assert_allclose(answers, host_answers[:60], atol=2e-6, rtol=0)


def test_two_threads_with_separate_arenas() -> None:
    images, _ = held_out_digits()
    with tenon.open(tenon.compile(DIGITS / "digits.onnx")) as engine:
        alone = [engine.run(image)["probabilities"] for image in images]
        engines = [engine.fork(), engine.fork()]
        results: dict[int, list[Array]] = {}

        def work(i: int) -> None:
            order = images if i == 0 else images[::-1]
            results[i] = [engines[i].run(image)["probabilities"] for image in order]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    np.testing.assert_array_equal(results[0], alone)
    np.testing.assert_array_equal(results[1][::-1], alone)


def test_builds_are_reproducible(tmp_path: Path) -> None:
    for name in ("a", "b"):
        bundle = tenon.compile(DIGITS / "digits.onnx")
        bundle.save(tmp_path / name, emit=(*bundle.parts, "exe"))
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "b").iterdir())
    assert len(files) == 7
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
