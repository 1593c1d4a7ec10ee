"""All algorithms, and the choice among them by estimate."""

from __future__ import annotations

import math
from functools import lru_cache

from tenon.machine.algorithms.base import Algorithm, Limits, Problem
from tenon.machine.algorithms.depthwise import Depthwise
from tenon.machine.algorithms.depthwise_items import DepthwiseItems
from tenon.machine.algorithms.direct import Direct
from tenon.machine.algorithms.in_turn import PRODUCTS, InTurn
from tenon.machine.algorithms.integer_depthwise_items import IntegerDepthwiseItems
from tenon.machine.algorithms.integer_dots import DotsDepthwise, DotsDirect
from tenon.machine.algorithms.integer_inner_products import IntegerInnerProducts
from tenon.machine.algorithms.integer_pairs import PairsDepthwise, PairsDirect, PairsWinograd
from tenon.machine.algorithms.integer_patches import IntegerPatches
from tenon.machine.algorithms.integer_scalar import ScalarDepthwise, ScalarDirect
from tenon.machine.algorithms.integer_separable import IntegerSeparable
from tenon.machine.algorithms.integer_staged import IntegerStaged, IntegerWarpgroups
from tenon.machine.algorithms.integer_tiled import IntegerTiled, IntegerVector
from tenon.machine.algorithms.integer_vector_winograd import IntegerWinograd
from tenon.machine.algorithms.integer_widened import IntegerWidened
from tenon.machine.algorithms.integers import IntegerDepthwise, IntegerDirect
from tenon.machine.algorithms.matrix_tiled import MatrixTiled
from tenon.machine.algorithms.outer_factors import OuterFactors
from tenon.machine.algorithms.outer_matrices import OuterMatrices
from tenon.machine.algorithms.outer_products import OuterProducts
from tenon.machine.algorithms.product_blocks import ProductBlocks
from tenon.machine.algorithms.separable import Separable
from tenon.machine.algorithms.separable_tiled import SeparableStaged, SeparableTiled
from tenon.machine.algorithms.strassen import Strassen
from tenon.machine.algorithms.tensor_staged import TensorStaged
from tenon.machine.algorithms.tensor_tiled import TensorTiled
from tenon.machine.algorithms.tensor_warpgroups import TensorWarpgroups
from tenon.machine.algorithms.tile_matrices import TileMatrices
from tenon.machine.algorithms.tile_patches import TilePatches
from tenon.machine.algorithms.tile_products import TileProducts
from tenon.machine.algorithms.tile_splits import TileSplits
from tenon.machine.algorithms.tiled import Tiled
from tenon.machine.algorithms.vector_product import VectorProduct
from tenon.machine.algorithms.winograd import Winograd
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array

ALGORITHMS: tuple[type[Algorithm], ...] = (
    Direct,
    Depthwise,
    Winograd,
    Strassen,
    Separable,
    IntegerDirect,
    IntegerDepthwise,
    ProductBlocks,
    OuterProducts,
    OuterMatrices,
    OuterFactors,
    IntegerWidened,
    IntegerInnerProducts,
    IntegerWinograd,
    DotsDirect,
    DotsDepthwise,
    PairsDirect,
    PairsDepthwise,
    PairsWinograd,
    ScalarDirect,
    ScalarDepthwise,
    Tiled,
    VectorProduct,
    DepthwiseItems,
    IntegerTiled,
    IntegerVector,
    IntegerDepthwiseItems,
    TensorTiled,
    MatrixTiled,
    TensorStaged,
    TensorWarpgroups,
    IntegerStaged,
    IntegerWarpgroups,
    IntegerPatches,
    IntegerSeparable,
    TileProducts,
    TilePatches,
    TileMatrices,
    TileSplits,
    SeparableTiled,
    SeparableStaged,
    InTurn,
)
"""Algorithms in order of preference: the first one wins where estimated times are equal."""

EVERY = 1 << 16
"""More candidates than there are."""


def candidates(
    problem: Problem, machine: Machine, limits: Limits, weights: Array | None = None
) -> tuple[Algorithm, ...]:
    """Algorithms for a problem, best first by estimate; () if none applies.

    ``weights``, [channels out, channels in / groups, kh, kw], are those of the last convolution: how far transformed
    weights are off in 16 bits depends on them.
    """
    allowed: dict[tuple[str | int, ...], bool] = {}
    kept = []
    for algorithm in _sorted(problem, machine, limits):
        most, numerics = algorithm.most_error(limits), algorithm.numerics
        if numerics not in allowed:
            allowed[numerics] = most == math.inf or algorithm.error(problem, weights) <= most
        if allowed[numerics]:
            kept.append(algorithm)
    return tuple(kept)


@lru_cache(maxsize=1024)
def _sorted(problem: Problem, machine: Machine, limits: Limits) -> tuple[Algorithm, ...]:
    able = (kind for kind in ALGORITHMS if machine.own_memory or not kind.own_memory)
    quantised = any(s.image_scale for s in problem)
    kinds = [kind for kind in able if kind.quantises == quantised and kind.applies(problem, machine)]
    listed = [each for kind in kinds for each in kind.candidates(problem, machine, limits, kind.offered)]
    return tuple(sorted(listed, key=lambda each: each.compared(problem, machine)))


def best(problem: Problem, machine: Machine) -> Algorithm:
    """The best of the algorithms for one convolution that add the same products: direct sums, by channels where it is a
    depthwise one, or in work groups."""
    kinds: tuple[type[Algorithm], ...] = (
        Direct,
        ProductBlocks,
        OuterProducts,
        OuterMatrices,
        OuterFactors,
        TileProducts,
        TileMatrices,
        Tiled,
        VectorProduct,
        TensorTiled,
        MatrixTiled,
        TensorStaged,
        TensorWarpgroups,
    )
    if Depthwise.applies(problem, machine):
        kinds = (Depthwise, DepthwiseItems)
    listed = [kind.candidates(problem, machine, Limits(), 1) for kind in kinds if kind.applies(problem, machine)]
    return min((each[0] for each in listed if each), key=lambda each: each.compared(problem, machine))


def of_product(problem: Problem, machine: Machine) -> tuple[Algorithm, ...]:
    """The algorithms for a matrix product of floats, best first by estimate, on a machine that runs work groups; ()
    elsewhere, where ``best`` has no alternative worth measuring."""
    if machine.launch is None:
        return ()
    able = [kind for kind in PRODUCTS if kind.applies(problem, machine)]
    listed = [each for kind in able for each in kind.candidates(problem, machine, Limits(), kind.offered)]
    return tuple(sorted(listed, key=lambda each: each.compared(problem, machine)))


def packed_alike(problem: Problem, machine: Machine, other: Algorithm) -> Algorithm | None:
    """An algorithm that packs the weights of ``problem`` as ``other`` packs those of the same layer in another shape;
    None if there is none."""
    kind = type(other)
    if not kind.applies(problem, machine):
        return None
    listed = kind.candidates(problem, machine, Limits(), EVERY)
    return next((each for each in listed if each.packing == other.packing), None)


@lru_cache(maxsize=1024)
def parse(key: str) -> Algorithm:
    """The algorithm that ``Algorithm.key`` is the text of.  Raises ValueError if there is none."""
    name, *pairs = key.split(" ")
    kind = next((kind for kind in ALGORITHMS if kind.name == name), None)
    try:
        numbers = {field: int(number) for field, _, number in (pair.partition("=") for pair in pairs)}
        algorithm = None if kind is None else kind.of_numbers(numbers)
    except (KeyError, ValueError):
        algorithm = None
    if algorithm is None or algorithm.key != key:
        raise ValueError(f"'{key}' is no algorithm; there are {', '.join(kind.name for kind in ALGORITHMS)}")
    return algorithm
