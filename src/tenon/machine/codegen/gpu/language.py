"""A language of kernels, and the host program that launches what is written in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tenon.machine.codegen.gpu.dialect import DeviceC


@dataclass(frozen=True)
class DeviceLanguage:
    """The properties in which the languages of devices differ.

    ``host`` are files of ``runtime/c`` with the functions that find a device and use it; ``embedded`` gives, in C, what
    the host program hands to the driver, from the text of all kernels and, in languages without pointers, the threads
    of the work groups of each.  Only languages with pointers have the rest: ``kernel`` stands before the name of a
    kernel, ``region`` and ``constant_region`` before those of its parameters, and ``item`` is the number of the thread.
    In a launch of work groups ``block`` is the number of the block (of ``size`` threads) and ``thread`` that of the
    thread in it; ``shared`` declares an array that the threads of a block share, and ``bounds`` tells the compiler how
    many threads a block has, ``clusters`` how many blocks a cluster.  More than ``declared`` bytes of such arrays are
    parts of one, ``stated``, whose bytes the host states.  ``aligned`` says of an address that it is a multiple of 16.
    ``waits`` is the statement by which a kernel that begins early waits for those that it depends on.
    ``reads`` is the file with the function that reads a number between launches; "" where the host cannot wait for one.
    ``streams``: a network can be queued on a stream of the caller's, with tensors that lie on the device.  ``graphs``:
    launches are nodes of a graph, which says what each waits for.
    """

    name: Literal["opencl", "cuda", "vulkan", "webgpu"]
    suffix: str
    title: str
    dialect: type[DeviceC]
    host: tuple[str, ...]
    embedded: Callable[[str, Sequence[int]], str]
    kernel: str = ""
    region: str = ""
    constant_region: str = ""
    item: str = ""
    block: str = ""
    thread: str = ""
    shared: str = ""
    stated: str = ""
    declared: int = 1 << 30
    bounds: str = ""
    clusters: str = ""
    aligned: str = ""
    waits: str = ""
    reads: str = ""
    streams: bool = False
    graphs: bool = False
