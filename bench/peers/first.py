"""One runtime in a fresh process, until its first result: python first.py RUNTIME MODEL DIMS

Writes "!" on standard output when it has the answer, and then what the system says of the process.  It imports nothing
that the runtime does not need: "python" is Python alone, "none" Python with NumPy.
"""

import os
import sys


def answer(runtime: str, model: str, dims: str) -> object:
    """Returns objects that must stay alive."""
    from pathlib import Path

    import numpy as np
    from contenders import CONTENDERS

    shape = tuple(map(int, dims.split("x")))
    call = CONTENDERS[runtime](Path(model), 1)
    outputs = call(np.full(shape, 0.5, np.float32))
    if not all(np.isfinite(np.asarray(array)).all() for array in outputs):
        raise ValueError("the answer holds NaN or infinity")
    return call


def process_report() -> bytes:
    """The status and the mappings of this process."""
    parts = []
    for name in ("status", "maps"):
        with open(f"/proc/self/{name}", "rb") as file:  # noqa: PTH123  (pathlib may not be imported yet)
            parts.append(file.read())
    return b"\n\n".join(parts)


if __name__ == "__main__":
    channel = os.dup(1)
    os.dup2(2, 1)  # runtimes may print
    kept = answer(*sys.argv[1:]) if sys.argv[1] != "python" else None
    os.write(channel, b"!")
    with os.fdopen(channel, "wb") as out:
        out.write(process_report())
    os._exit(0)  # some runtimes crash on exit
