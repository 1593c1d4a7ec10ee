"""``tenon targets``: the targets by class of machine, and the products that have them."""

from __future__ import annotations

from typing import Any

from tenon.cli.console import console, print_json, table
from tenon.machine.targets import Target, find, targets
from tenon.machine.targets.base import Group
from tenon.machine.targets.describe import how_tested, machine_code, runs
from tenon.machine.targets.host import missing
from tenon.machine.targets.registry import products

_HERE = {"natively": "yes", "emulator": "emulator", "no": "no"}


def list_targets(*, as_json: bool) -> None:
    rows, best = targets(), find("host").name
    if as_json:
        return print_json({**{name: _facts(row, name == best) for name, row in rows.items()}, **_products()})
    boards = products().values()
    for group in Group:
        shown = table("target", "machine", "runs here", "tested")
        for name, row in sorted(rows.items()):
            if row.group is group:
                shown.add_row(name + (" *" if name == best else ""), row.about, _HERE[runs(row)], how_tested(row))
        for product in sorted((p for p in boards if p.group is group), key=lambda p: p.name):
            shown.add_row(product.name, product.about, _HERE[runs(rows[product.target])], f"as {product.target}")
        if shown.row_count:
            console.print(group.capitalize(), style="bold")
            console.print(shown)
            console.print()
    return console.print("* this machine", markup=False)


def _facts(row: Target, best: bool) -> dict[str, Any]:
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
        "runs": runs(row),
        "missing": missing(row),
        "host": best,
    }


def _products() -> dict[str, dict[str, str]]:
    return {name: {"group": p.group, "about": p.about, "target": p.target} for name, p in products().items()}
