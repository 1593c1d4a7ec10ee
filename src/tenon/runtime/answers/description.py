"""Heads as ``--head`` and manifests describe them: a kind, and its fields as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from tenon.errors import InputError
from tenon.validation import MisfitError, reader

if TYPE_CHECKING:
    from tenon.runtime.answers.base import Head
    from tenon.runtime.bundle.manifest import BundleTensor

PORTS = ("outputs", "presence")
"""Fields of heads that name outputs."""


def is_answer(fields: Mapping[str, Any]) -> bool:
    """Whether a description is of a head of this package; others are of detections (``passes.heads``)."""
    from tenon.runtime.answers.registry import heads

    return fields.get("kind") in heads()


def described_head(fields: Mapping[str, Any], outputs: Sequence[BundleTensor]) -> Head:
    """The head that a description asks for, for a network with these outputs.

    ``fields`` are "kind" and fields of that kind's class, as values or as text with commas.  Raises InputError for an
    unknown kind, unknown or invalid fields, and outputs that the network does not have.
    """
    from tenon.runtime.answers.registry import heads

    kind = heads().get(str(fields.get("kind")))
    if kind is None:
        raise InputError(f"--head {fields.get('kind')}: choose from {', '.join(heads())}")
    hints = get_type_hints(kind)
    values = {name: _items(hints.get(name), value) for name, value in fields.items() if name != "kind"}
    try:
        head: Head = reader(kind, from_text=True)(values)
    except MisfitError as misfit:
        where = ".".join(map(str, misfit.where))
        raise InputError(f"--head {kind.kind}: {where + ' ' if where else 'it '}{misfit.why}") from None
    return dataclasses.replace(head, outputs=head.named(outputs))


def _items(hint: object, value: Any) -> Any:
    return value.split(",") if get_origin(hint) is tuple and isinstance(value, str) else value


def written_head(head: Head) -> dict[str, str]:
    """The description of a head: its kind and all of its fields as text."""
    fields = {each.name: getattr(head, each.name) for each in dataclasses.fields(head)}
    texts = {name: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in fields.items()}
    return {"kind": head.kind, **{name: text for name, text in texts.items() if text}}


def renamed_outputs(fields: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The description with other names of outputs."""
    return {
        field: ",".join(names.get(name, name) for name in text.split(",")) if field in PORTS else text
        for field, text in fields.items()
    }
