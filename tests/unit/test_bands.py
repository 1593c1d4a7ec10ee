"""Tiles of direct sums in bands of positions: each tile once, weights of the next group prefetched by all of a band."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from interpret import interpret
from lowered import MACHINES
from tenon.machine.codegen.spread import independent
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Loop, Stmt
from tenon.machine.kernels import conv as direct
from tenon.machine.kernels.bands import BandTile, bands_of, tiles_of_bands
from tenon.machine.kernels.conv import Conv, OutputTile, conv, pack
from tenon.machine.kernels.image import Image
from tenon.machine.proofs.bounds import prove
from tenon.network.ops.conv import Conv as Operator

SIZES = [((1, 361), (1, 13)), ((1, 26), (1, 13)), ((7, 10), (2, 4)), ((9, 5), (3, 5)), ((1, 5), (1, 8))]


def walked(extent: tuple[int, int], tile: tuple[int, int], bands: int) -> list[tuple[BandTile, dict[Var, int]]]:
    """Every tile of two parts of three groups and two images, with the values of the loops around it."""
    k, kinds = Builder("k"), list[BandTile]()
    y = k.param("y", 1, out=True)
    for each in tiles_of_bands(k, (2, 3), extent, tile, 4, 2, bands):
        y[len(kinds)] = 0.0
        kinds.append(each)
    return [
        (each, dict(zip((var for var, _ in loops), turn, strict=True)))
        for each, loops in zip(kinds, _loops_around(k.done().body, ()), strict=True)
        for turn in product(*(range(extent) for _, extent in loops))
    ]


def _loops_around(body: tuple[Stmt, ...], outer: tuple[tuple[Var, int], ...]) -> list[tuple[tuple[Var, int], ...]]:
    """The loops around each store, outermost first, with their extents."""
    nests = []
    for s in body:
        if isinstance(s, Loop):
            extent = min(bound.const for bound in s.var.below if not bound.terms)
            nests += _loops_around(s.body, (*outer, (s.var, extent)))
        else:
            nests.append(outer)
    return nests


def number(at: Index, values: dict[Any, int]) -> int:
    return at.const + sum([factor * values[var] for var, factor in at.terms])


@pytest.mark.parametrize("bands", [1, 4, 100])
@pytest.mark.parametrize(("extent", "tile"), SIZES)
def test_tiles_cover_all_positions_once(extent: tuple[int, int], tile: tuple[int, int], bands: int) -> None:
    seen = Counter[tuple[int, int, int, int]]()
    shares: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for t, values in walked(extent, tile, bands):
        o, image, top, left = (number(at, values) for at in (t.o, t.image, t.top, t.left))
        seen.update((o, image, top + i, left + j) for i in range(t.height) for j in range(t.width))
        turn = number(t.turn, values)
        assert 0 <= turn < t.of
        shares.setdefault((o, image), set()).add((turn, t.of))
    assert set(seen.values()) == {1}
    assert len(seen) == 6 * 2 * extent[0] * extent[1]
    for turns in shares.values():
        for of in {of for _, of in turns}:
            assert {turn for turn, own in turns if own == of} == set(range(of)), "a group's weights are fetched whole"


def test_bands_stay_in_the_cache_of_a_processor() -> None:
    assert bands_of(1 << 20, 1, 1 << 18) == 4
    assert bands_of(1 << 20, 4, 1 << 18) == 4
    assert bands_of(3 << 20, 4, 1 << 18) == 12
    assert bands_of(1000, 4, 1 << 18) == 4


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_by_bands_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch, kernel: int, threads: int) -> None:
    monkeypatch.setattr(direct, "_LARGE", 1)
    monkeypatch.setattr(direct, "_KEPT", 20 << 10)
    machine, pad = replace(MACHINES["lanes4"], threads=threads), kernel // 2
    x, w = (
        np.random.default_rng(0).standard_normal(dims).astype(np.float32)
        for dims in ((1, 8, 23, 19), (24, 8, kernel, kernel))
    )
    s = Conv(
        Image(1, 8, 23, 19, 4, pad, pad, pad, pad),
        Image(1, 24, 23, 19, 4),
        (kernel,) * 2,
        top=pad,
        left=pad,
        bias=False,
    )
    s = s.flattened()
    tile = OutputTile(1, 5, 2)
    monkeypatch.setattr(direct, "parts_of_groups", lambda *_: 1)
    walks = list[int]()

    def noted(*given: Any) -> Iterator[BandTile]:
        walks.append(given[-1])
        return tiles_of_bands(*given)

    monkeypatch.setattr(direct, "tiles_of_bands", noted)
    made = conv(s, replace(machine, stream=4.0 + threads), tile)
    assert walks == [bands_of(4 * math.prod(s.x.shape), threads, 20 << 10)]
    prove(made)
    assert independent(made, ())
    blocked = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))).reshape(1, 2, 4, 23 + 2 * pad, 19 + 2 * pad)
    y = np.full(s.y.shape, np.nan, np.float32)
    (weights,) = pack(w, s, machine, tile.vecs)
    interpret(made, [np.ascontiguousarray(blocked.transpose(0, 1, 3, 4, 2)).ravel(), weights.ravel(), y.ravel()])
    truth = Operator(pads=(pad,) * 4).reference(x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_allclose(y.reshape(6, 23, 19, 4).transpose(0, 3, 1, 2).reshape(truth.shape), truth, atol=1e-4)
