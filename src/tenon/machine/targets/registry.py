"""The modules of this package that describe targets, found by looking into its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module

from tenon.errors import InternalError
from tenon.machine.targets.base import Product, Target


def rows() -> dict[str, Target]:
    """Every target by name, in the order of their files."""
    targets: dict[str, Target] = {}
    for module in sorted(_modules()):
        for row in _rows(module):
            if row.name in targets:
                raise InternalError(f"two targets are called {row.name}")
            targets[row.name] = row
    return targets


def products() -> dict[str, Product]:
    """Every chip, board and system by name, in the order of their files."""
    by_name: dict[str, Product] = {}
    for module in sorted(_modules()):
        listed: tuple[Product, ...] = getattr(import_module(f"tenon.machine.targets.{module}"), "PRODUCTS", ())
        for product in listed:
            if product.name in by_name:
                raise InternalError(f"two products are called {product.name}")
            by_name[product.name] = product
    return by_name


def named(name: str) -> Target | None:
    """The target of that name.

    Modules with the same first letter come first: opening a bundle needs one row and should not read them all.
    """
    for module in sorted(_modules(), key=lambda module: module[:1] != name[:1]):
        for row in _rows(module):
            if row.name == name:
                return row
    return None


def _modules() -> Iterator[str]:
    for file in os.listdir(os.path.dirname(__file__)):
        stem, suffix = os.path.splitext(file)
        if suffix == ".py" and not stem.startswith("__"):
            yield stem


def _rows(module: str) -> tuple[Target, ...]:
    rows: tuple[Target, ...] = getattr(import_module(f"tenon.machine.targets.{module}"), "TARGETS", ())
    return rows
