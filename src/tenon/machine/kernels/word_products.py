"""Products of bytes of images, of which each takes one of four neighbouring words of activations (NEON's SDOT).

The words are the four channels of neighbouring positions, or sixteen channels of one position; those of several
positions stay in registers while weights are loaded one after the other.
"""

from __future__ import annotations

from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine

WORDS = 4
POSITIONS, CHANNELS = "positions", "channels"
_SPARE = 1
"""Registers that compilers need besides."""


def words_of(s: Conv, machine: Machine) -> str:
    """Whether the four words of a vector are of ``POSITIONS`` or of ``CHANNELS``; "" where products take no words."""
    unit = machine.fours.get(s.x.dtype) or next(iter(machine.fours.values()), None)
    if unit is None or unit.operation != "dot4_signed" or machine.lanes != WORDS or machine.registers < 32:
        return ""
    if s.x.block == 4:
        return POSITIONS if s.stride[1] == 1 or (s.stride[1] == 2 and _reaches(s)) else ""
    return CHANNELS if s.x.block % (4 * WORDS) == 0 else ""


def _reaches(s: Conv) -> bool:
    """Whether rows of the image go on for a word after the last one that a stride of 2 reads."""
    last = (s.x.left - s.left) + (s.extent[1] - 1) * 2 + (s.kernel[1] - 1) * s.dilation[1]
    return last + 1 < s.x.left + s.x.w + s.x.right


def loads(positions: int, words: str) -> float:
    """The loads of activations in a step of four channels, where positions have no stride."""
    return positions // WORDS + positions % WORDS if words == POSITIONS else positions / WORDS


def fits(machine: Machine, positions: int, vecs: int, words: str) -> bool:
    """Whether a tile leaves enough registers for weights and activations."""
    others = -(-positions // WORDS) + vecs if words == POSITIONS else positions + 2 * vecs
    return positions * vecs + others + _SPARE <= machine.registers
