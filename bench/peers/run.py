#!/usr/bin/env python3
"""Compare bundles with other runtimes: interleaved runs with checked results; writes a table, JSON and a plot.

    python bench/peers/run.py --nets mobilenet_v1,resnet18 --threads 1,2 --precision fp32,bf16,int8 \\
        --python PEERS/bin/python --tflite-python CONVERTERS/bin/python

Every runtime is a process of its own, pinned to the same processors; all are loaded and warm before the first round,
and each round gives every one a slice of time in turn, so that all see the same machine.  On a busy machine --urgent
keeps everything else away while something is timed, or --processor-time counts the time that the threads of a runtime
run.  TENON_TARGET and ONEDNN_MAX_CPU_ISA in the environment limit Tenon and OpenVINO to less than the processor has.  A
runtime that is missing or fails is noted.  An answer in fp32 further than 1e-3 from onnxruntime's without optimisations
is wrong and does not count.  Ours is compiled for the number of threads that it is timed with; quantised networks are
one QDQ model that every runtime reads.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from contenders import PEERS, PRECISIONS
from contenders import runtimes as names
from prepare import ROOT, MissingError, Workshop
from race import Net, race
from report import markdown, plot, save, summary

TABLE = (
    "squeezenet_v1.1", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large",
    "shufflenet_v2_1.0", "resnet18", "resnet50", "googlenet", "inception_v3", "vgg16", "mobilenet_ssd",
    "retinaface_mnet025", "yolov3_tiny", "mobilefacenet",
)  # fmt: skip
BEYOND = ("yolov5s", "efficientnet_b0", "vit_tiny", "mobilevit_xxs")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nets", default="table", help="names, 'table' (15), 'beyond' (4) or 'all', as in table,vit_tiny"
    )
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--precision", default="fp32", help=f"some of {','.join(PRECISIONS)}")
    parser.add_argument("--threads", default="1", help="as in 1,2")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--slice", type=float, default=0.1, help="seconds per runtime and round")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no network after so many")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile everything before the first round")
    parser.add_argument("--urgent", action="store_true", help="time at real-time priority (root): for busy machines")
    parser.add_argument("--processor-time", action="store_true", help="time of the process, not that which passes")
    parser.add_argument("--cpu", default="0", help="the first processor to use, or all of them, as in 0,2,4,6")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "zoo")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers", help="where converted models are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "peers" / "report", help="folder of the results")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="a Python that has the peers")
    parser.add_argument("--tflite-python", type=Path, help="a Python that has what to_tflite.py needs")
    return parser.parse_args()


def main() -> int:
    began = perf_counter()
    options = arguments()
    sets = {"table": TABLE, "beyond": BEYOND, "all": TABLE + BEYOND}
    nets = tuple(net for name in options.nets.split(",") for net in sets.get(name, (name,)))
    runtimes = names(options.precision.split(","), options.peers.split(","))
    threads = tuple(map(int, options.threads.split(",")))
    shop = Workshop(options.models, options.work, options.python, options.tflite_python)
    if options.jobs > 1:
        shop.prepare(runtimes, nets, threads, options.jobs)
        print(f"prepared in {perf_counter() - began:.0f} s", flush=True)
    words = {"urgent": options.urgent, "processor": options.processor_time}
    order = " ".join([str(options.slice), *(word for word, given in words.items() if given)])
    results = []
    for number, net in product(threads, nets):
        if perf_counter() - began > options.seconds:
            print(f"no time for {net} with {number} threads", file=sys.stderr)
            continue
        try:
            outcome = race(Net(net, number, options.cpu), runtimes, shop, options.rounds, order)
        except MissingError as missing:
            print(f"{net}: {missing}", file=sys.stderr)
            continue
        results.append(outcome)
        print(outcome.text(), flush=True)
    save(options.out, results)
    (options.out / "table.md").write_text(markdown(results))
    for number in {outcome.threads for outcome in results}:
        (options.out / f"ratio_{number}.svg").write_text(plot([f for f in results if f.threads == number]))
    print(summary(results))
    print(f"{options.out}/table.md, results.json, ratio_*.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
