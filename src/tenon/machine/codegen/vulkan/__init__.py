"""The Vulkan backend: compute shaders in GLSL, compiled to SPIR-V ahead of time."""

from __future__ import annotations

from tenon.machine.codegen.backend import Backend
from tenon.machine.codegen.gpu.backend import DeviceBackend
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.vulkan.matrices import GlslPrograms
from tenon.machine.codegen.vulkan.spirv import embedded

LANGUAGE = DeviceLanguage(
    name="vulkan",
    suffix=".comp",
    title="GLSL",
    dialect=GlslPrograms,
    host=("vulkan_api.c", "vulkan_shaders.c", "vulkan_queue.c", "device_groups.c", "vulkan_runs.c"),
    reads="vulkan_reads.c",
    embedded=embedded,
)
BACKEND: Backend = DeviceBackend(LANGUAGE)
