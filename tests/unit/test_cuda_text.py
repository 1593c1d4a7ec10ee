"""PTX that drivers of CUDA 11.4 take."""

from __future__ import annotations

from tenon.machine.codegen.cuda.nvrtc import VERSIONS, architecture, older, version
from tenon.machine.isa.warpgroups import DEVICE_INSTRUCTIONS


def test_newer_versions_and_hints_are_left_out() -> None:
    text = """//
.version 9.0
.target sm_75
.visible .entry k() {
\t.pragma "used_bytes_mask 0x7777";
\tld.global.v4.f32 \t{%f1, %f2, %f3, %f4}, [%rd1];
\tret;
}
"""
    assert older(text, VERSIONS[75]).splitlines() == [
        "//",
        ".version 6.5",
        ".target sm_75",
        ".visible .entry k() {",
        "\tld.global.v4.f32 \t{%f1, %f2, %f3, %f4}, [%rd1];",
        "\tret;",
        "}",
    ]


def test_kernels_say_what_they_need() -> None:
    assert architecture("__global__ void k() {}") == 75
    assert architecture('asm volatile("cp.async.commit_group;");') == 80
    assert architecture("__global__ __cluster_dims__(4, 1, 1) void k() {}") == 90


def test_products_of_bytes_without_a_sign_need_a_newer_version() -> None:
    functions = DEVICE_INSTRUCTIONS["cuda"]
    versions = {name: version(functions[name]) for name in ("wgmma_f16_n64", "wgmma_i8_n64", "wgmma_u8_n64")}
    assert versions == {"wgmma_f16_n64": "8.0", "wgmma_i8_n64": "8.0", "wgmma_u8_n64": "8.4"}
    assert version("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32") == "7.0"
