"""PTX that drivers of CUDA 11.4 take."""

from __future__ import annotations

from tenon.machine.codegen.cuda.nvrtc import VERSIONS, architecture, older


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
