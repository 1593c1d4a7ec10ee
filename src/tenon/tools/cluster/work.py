"""Items of work and their content addresses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WorkItem:
    """A call of a module's ``function``, which has no side effects but caches.

    Items with the same ``key`` have the same result.  ``resources`` are what a worker must have, by name, and how much
    of it the item takes meanwhile: a device that only one program may use is ``{"pi5": 1}``.
    """

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    resources: Mapping[str, float] = field(default_factory=dict)


def content_key(kind: str, *parts: object) -> str:
    """A key for what ``parts`` say: bytes as they are, all else by its ``repr``."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return f"{kind}-{digest.hexdigest()[:32]}"
