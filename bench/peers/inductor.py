"""An ONNX model of the zoo in PyTorch, compiled by Inductor or not, and recorded as one CUDA graph."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx_in_torch import OnnxModule

EAGER = "eager"  # in place of a mode of torch.compile: operators one by one, images and weights channels last

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Inductor:
    """Runs a model with one input; ``mode`` is torch.compile's, e.g. "max-autotune-no-cudagraphs", or ``EAGER``.

    fp32 multiplies without TF32; cuDNN measures its algorithms.  The graph holds no copies from or to the host.
    """

    def __init__(self, model: Path, precision: str, feeds: dict[str, np.ndarray], mode: str) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.kind = TYPES[precision]
        start = time.perf_counter()
        example = torch.from_numpy(*feeds.values()).to(self.kind)
        module = OnnxModule(onnx.load(model)).eval().to(self.kind)
        exported = torch.export.export(module, (example,), strict=False).module().cuda()
        self.input = example.cuda()
        if mode == EAGER:
            network = exported.to(memory_format=torch.channels_last)
            self.input = self.input.to(memory_format=torch.channels_last)
        else:
            network = torch.compile(exported, mode=mode)
        self.network = network  # holds the weights that the graph reads
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    network(self.input)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph):
                self.outputs = network(self.input)
        self.seconds = time.perf_counter() - start

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """One run with copies from and to the host, which is waited for."""
        self.input.copy_(torch.from_numpy(*feeds.values()).cuda())
        self.graph.replay()
        return [output.float().cpu().numpy() for output in self.outputs]

    def queued(self, count: int) -> float:
        """Milliseconds of a run without copies, of ``count`` queued runs."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            self.graph.replay()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / count

    def kernel_times(self, kernels: list[str]) -> list[str]:
        """A line for each kernel in the order of launches: microseconds, the mean of ten runs, and its name."""
        runs = 10
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(runs):
                self.graph.replay()
            torch.cuda.synchronize()
        on_device = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        on_device.sort(key=lambda event: event.time_range.start)
        launches = len(on_device) // runs
        lines = []
        for i in range(launches):
            mean = sum(on_device[i + launches * run].time_range.elapsed_us() for run in range(runs)) / runs
            lines.append(f"  {mean:6.1f} {on_device[i].name[:90]}")
        return lines
