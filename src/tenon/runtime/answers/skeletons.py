"""Lines between the points of bodies and hands, by the name of the data set or model that orders the points."""

from __future__ import annotations

from itertools import pairwise

from tenon.errors import InputError

Edges = tuple[tuple[int, int], ...]


def _edges(text: str) -> Edges:
    """``0-1-2 5-6``: chains of points."""
    chains = [[int(number) for number in chain.split("-")] for chain in text.split()]
    return tuple((a, b) for chain in chains for a, b in pairwise(chain))


SKELETONS: dict[str, Edges] = {
    "none": (),
    "coco": _edges("15-13-11-12-14-16 11-5-6-12 5-7-9 6-8-10 1-0-2 1-3 2-4"),
    "openpose": _edges("0-1 1-2-3-4 1-5-6-7 1-8-9-10 1-11-12-13 0-14-16 0-15-17"),
    "mpii": _edges("0-1-2-6-3-4-5 6-7-8-9 10-11-12-7-13-14-15"),
    "body33": _edges(
        "8-6-5-4-0-1-2-3-7 10-9 11-13-15-21 15-17-19-15 12-14-16-22 16-18-20-16 11-12-24-23-11 "
        "23-25-27-29-31-27 24-26-28-30-32-28"
    ),
    "hand21": _edges("0-1-2-3-4 0-5-6-7-8 5-9-10-11-12 9-13-14-15-16 13-17-18-19-20 0-17"),
}
"""COCO (17 points), OpenPose (18), MPII (16), MediaPipe's body (33) and hand (21)."""


def find_edges(text: str, count: int) -> Edges:
    """The lines of a skeleton by name, or of chains such as ``0-1-2 5-6`` (or with "/" between chains).

    Raises InputError for an unknown name and for a point that is not one of ``count``.
    """
    try:
        edges = SKELETONS[text] if text in SKELETONS else _edges(text.replace("/", " "))
    except ValueError:
        names = ", ".join(SKELETONS)
        raise InputError(f"--head: edges={text}: write chains of points such as 0-1-2/5-6, or one of {names}") from None
    if any(max(edge) >= count for edge in edges):
        raise InputError(f"--head: edges={text}: there are only {count} points")
    return edges
