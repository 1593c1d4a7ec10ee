"""Networks whose sizes a run chooses, with code of their own for classes of sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import sized_networks
import tenon
from sized import rows
from sized_models import by_references, loaded
from tenon.errors import InputError
from tenon.machine.plan.program import Branch, Call
from tenon.network.graph.size_range import Size, SizeRange
from tenon.network.passes.size_classes import chosen_by_size, class_ranges, smaller_shapes

SHAPES = {"H": Size("H", 32, 96, 32), "W": Size("W", 32, 96, 32)}


@pytest.mark.parametrize(
    ("range", "count", "largest"),
    [
        (SizeRange(64, 512, 32), 1, []),
        (SizeRange(64, 512, 32), 2, [256]),
        (SizeRange(64, 512, 32), 4, [64, 128, 256]),
        (SizeRange(64, 512, 32), 5, [64, 128, 192, 320]),
        (SizeRange(1, 128), 4, [16, 32, 64]),
        (SizeRange(0, 3), 8, [1, 2]),
        (SizeRange(5, 5), 4, []),
    ],
    ids=str,
)
def test_largest_sizes_of_classes(range: SizeRange, count: int, largest: list[int]) -> None:
    assert [each["L"].most for each in class_ranges({"L": range}, count)] == largest


def test_shapes_of_classes() -> None:
    shapes = {"x": "1,3,H:64..128:64,W:32..128:32", "seq": "1..8"}
    assert smaller_shapes(shapes, 1) == []
    (small,) = smaller_shapes(shapes, 2)
    assert small == {"x": (1, 3, 64, Size("W", 32, 64, 32)), "seq": Size("seq", 1, 4)}
    with pytest.raises(InputError, match=r"size_classes=2 needs a dimension with a range"):
        smaller_shapes({"x": (1, 3)}, 2)


@pytest.fixture(scope="module")
def engine() -> Iterator[tenon.Engine]:
    model = sized_networks.detector().SerializeToString()
    with tenon.open(tenon.compile(model, shapes=SHAPES, size_classes=3, no_tuning=True)) as engine:
        yield engine


@pytest.mark.parametrize(("h", "w"), [(32, 32), (96, 64), (32, 64), (96, 96)])
def test_a_run_computes_the_same_in_every_class(engine: tenon.Engine, h: int, w: int) -> None:
    """Memory beyond the sizes of a run holds what the run before left there."""
    x = np.random.default_rng(h + w).uniform(-2, 2, (1, 3, h, w)).astype(np.float32)
    results = engine.run({"x": x})
    graph = loaded(sized_networks.detector(), SHAPES)
    for name, expected in by_references(graph, {"x": x}, {"H": h, "W": w}).items():
        np.testing.assert_allclose(results[name], expected, rtol=1e-4, atol=1e-4)


def test_sizes_are_checked_before_a_class_is_chosen(engine: tenon.Engine) -> None:
    engine.inputs["H"][...], engine.inputs["W"][...] = 32, 31
    with pytest.raises(InputError, match="'W' is 31"):
        engine.run()


def test_classes_share_weights_and_results_end_at_extents() -> None:
    """Constants of equal content are stored once; what is beyond the extents of a class's results is not written."""
    model = sized_networks.encoder().SerializeToString()
    plain, classes = (
        tenon.compile(model, shapes={"L": Size("L", 1, 32)}, size_classes=n, no_tuning=True).program for n in (1, 2)
    )
    assert classes.memory.constant < 1.2 * plain.memory.constant
    (branch,) = (item for item in classes.items if isinstance(item, Branch))
    calls = [item for item in branch.bodies[1] if isinstance(item, Call)]
    pads = [call for call in calls if call.op == "Pad"]
    assert pads
    assert all(call.cut is not None for call in pads)


@pytest.mark.parametrize(
    ("target", "message"),
    [("cuda", "has one code for all sizes: leave out size_classes=2"), ("host", "needs a dimension")],
)
def test_classes_that_cannot_be_are_refused(target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tenon.compile(rows(), size_classes=2, target=target)


def test_networks_with_states_are_refused() -> None:
    graph = rows()
    graph.states["x"] = 0
    with pytest.raises(InputError, match="a network with states has one code for all sizes"):
        chosen_by_size(graph, [rows()])
