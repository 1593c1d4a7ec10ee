"""The passes that run before all others, as the target wants them."""

from __future__ import annotations

from tenon.network.passes.base import Pass
from tenon.network.passes.loop_products import LOOP_PRODUCTS
from tenon.network.passes.real_results import REAL_RESULTS
from tenon.network.passes.row_products import ROW_PRODUCTS


def first_passes(*, microcontroller: bool, device: bool) -> list[Pass]:
    """The passes for a microcontroller, for another processor, or for a device with a queue."""
    return [*([LOOP_PRODUCTS] if microcontroller else []), REAL_RESULTS if device else ROW_PRODUCTS]
