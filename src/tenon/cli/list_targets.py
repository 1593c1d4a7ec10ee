"""``tenon targets``: the targets by class of machine, and the products that have them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tenon.cli.console import console, print_json, table
from tenon.machine.targets import Target, find, targets
from tenon.machine.targets.base import Group
from tenon.machine.targets.describe import how_tested, machine_code, runs
from tenon.machine.targets.host import missing
from tenon.machine.targets.registry import products
from tenon.runtime.engine.device_here import why_no_device

_HERE = {"natively": "yes", "emulator": "emulator", "no": "no"}


def list_targets(*, as_json: bool) -> None:
    rows, best = targets(), find("host").name
    no_device = _without_device(rows)
    if as_json:
        facts = {name: _facts(row, name == best, no_device[name]) for name, row in rows.items()}
        return print_json({**facts, **_products()})
    boards = products().values()
    for group in Group:
        shown = table("target", "machine", "runs here", "tested")
        for name, row in sorted(rows.items()):
            if row.group is group:
                shown.add_row(name + (" *" if name == best else ""), row.about, _here(row, no_device), how_tested(row))
        for product in sorted((p for p in boards if p.group is group), key=lambda p: p.name):
            here = _here(rows[product.target], no_device)
            shown.add_row(product.name, product.about, here, f"as {product.target}")
        if shown.row_count:
            console.print(group.capitalize(), style="bold")
            console.print(shown)
            console.print()
    return console.print("* this machine", markup=False)


def _without_device(rows: Mapping[str, Target]) -> dict[str, str]:
    """Why each target finds no device here, "" where it needs none: each asks a driver in a process of its own."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(rows, pool.map(why_no_device, rows.values()), strict=True))


def _here(row: Target, no_device: Mapping[str, str]) -> str:
    return "no device" if no_device[row.name] else _HERE[runs(row)]


def _facts(row: Target, best: bool, no_device: str) -> dict[str, Any]:
    return {
        "group": row.group,
        "about": row.about,
        "triple": row.triple,
        "cpu": row.cpu,
        "lanes": row.machine.lanes,
        "byte_order": row.byte_order,
        "pointer": row.pointer,
        "machine_code": list(machine_code(row)),
        "tested": how_tested(row),
        "runs": "no" if no_device else runs(row),
        "missing": no_device or missing(row),
        "host": best,
    }


def _products() -> dict[str, dict[str, str]]:
    return {name: {"group": p.group, "about": p.about, "target": p.target} for name, p in products().items()}
