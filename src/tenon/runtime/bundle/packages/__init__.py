"""A network as other build systems want it: one module for each package form, all over the same files of a bundle."""

from __future__ import annotations

from tenon.runtime.bundle.packages.contents import Contents
from tenon.runtime.bundle.packages.forms import FORMS, PackageForm
from tenon.runtime.bundle.packages.mace import engine_factory

__all__ = ["FORMS", "Contents", "PackageForm", "engine_factory"]
