"""The WebGPU backend: kernels in WGSL, and a module in JavaScript that launches them."""

from __future__ import annotations

from tenon.machine.codegen.backend import Backend
from tenon.machine.codegen.webgpu.backend import WebGpu

BACKEND: Backend = WebGpu()
