"""The network behind MACE Micro's C++ API: the engine (C++98), the network's C files, and a CMake project."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from tenon.runtime.bundle.packages.contents import Contents

_RUNTIME = Path(__file__).parents[2] / "c" / "micro"
_ALIGNMENT = 64
_PUBLIC = '#include "../../../micro.h"\n'
_FACTORY = """\
// How programs get the engine of the network @NAME@.

#ifndef MICRO_CODEGEN_@PREFIX@_MICRO_ENGINE_FACTORY_H_
#define MICRO_CODEGEN_@PREFIX@_MICRO_ENGINE_FACTORY_H_

#include "micro.h"

namespace micro {
namespace @NAME@ {

// The only engine of this network in the program, with the weights that are linked in.
MaceStatus GetMicroEngineSingleton(MaceMicroEngine **engine);

// The same engine with the weights of @NAME@.bin, which must stay; they are moved inside `model_data` to be aligned.
MaceStatus CreateMaceMicroEngineFromBinary(uint8_t *model_data, int32_t size, int32_t input_size,
                                           MaceMicroEngine **engine);
MaceStatus CreateMaceMicroEngineFromBinary(uint8_t *model_data, int32_t size, MaceMicroEngine **engine);

}  // namespace @NAME@
}  // namespace micro

#endif  // MICRO_CODEGEN_@PREFIX@_MICRO_ENGINE_FACTORY_H_
"""
_C_INTERFACE = """\
/* The engine of the network @NAME@ for programs in C.  Functions of type bool are false on an error. */

#ifndef MICRO_CODEGEN_@PREFIX@_MICRO_ENGINE_C_INTERFACE_H_
#define MICRO_CODEGEN_@PREFIX@_MICRO_ENGINE_C_INTERFACE_H_

#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif

void *@NAME@_GetMaceMicroEngineHandle();
bool @NAME@_RegisterInputData(void *handle, uint32_t idx, const void *input_buffer, const int32_t *input_dims);
bool @NAME@_Interpret(void *handle);
bool @NAME@_GetInterpretResult(void *handle, const uint32_t idx, void **output_data, const int32_t **output_dims,
                               uint32_t *output_dim_size);

#ifdef __cplusplus
}
#endif

#endif
"""
_ENGINE = """\
// The engine of the network @NAME@ and its memory.

#include "@NAME@_weights.h"
#include "micro/codegen/@NAME@/micro_engine_c_interface.h"
#include "micro/codegen/@NAME@/micro_engine_factory.h"
#include "micro_model.h"

namespace micro {
namespace @NAME@ {
namespace {

@PORTS@
model::NetDef net = {::@NAME@, inputs, outputs, @INPUTS@, @OUTPUTS@, @BYTES@, "@NAME@"};
TENON_MEM_ALIGN(64) uint8_t tensors[@PREFIX@_MUTABLE_MEM_SIZE + 1];
TENON_MEM_ALIGN(64) uint8_t scratch[@PREFIX@_ACTIVATIONS_MEM_SIZE + 1];
const void *input_buffers[@INPUTS@ + 1];
const int32_t *input_shapes[@INPUTS@ + 1];
MaceMicroEngineConfig config = {
    &net, @NAME@_weights, NULL, NULL, tensors, input_buffers, input_shapes, scratch, @PREFIX@_ACTIVATIONS_MEM_SIZE,
};
MaceMicroEngine the_engine;

MaceStatus engine_with(const uint8_t *weights, MaceMicroEngine **engine) {
  if (engine == NULL || weights == NULL) return MACE_INVALID_ARGS;
  if (the_engine.GetEngineConfig() == NULL || config.model_data_ != weights) {
    config.model_data_ = weights;
    const MaceStatus status = the_engine.Init(&config);
    if (status != MACE_SUCCESS) return status;
  }
  *engine = &the_engine;
  return MACE_SUCCESS;
}

}  // namespace

MaceStatus GetMicroEngineSingleton(MaceMicroEngine **engine) { return engine_with(@NAME@_weights, engine); }

MaceStatus CreateMaceMicroEngineFromBinary(uint8_t *model_data, int32_t size, int32_t input_size,
                                           MaceMicroEngine **engine) {
  if (size < 0 || input_size != @INPUTS@) return MACE_INVALID_ARGS;
  return engine_with(model::WeightsOfBinary(model_data, static_cast<uint32_t>(size), net), engine);
}

MaceStatus CreateMaceMicroEngineFromBinary(uint8_t *model_data, int32_t size, MaceMicroEngine **engine) {
  return CreateMaceMicroEngineFromBinary(model_data, size, @INPUTS@, engine);
}

}  // namespace @NAME@
}  // namespace micro

void *@NAME@_GetMaceMicroEngineHandle() {
  micro::MaceMicroEngine *engine = NULL;
  micro::@NAME@::GetMicroEngineSingleton(&engine);
  return engine;
}

bool @NAME@_RegisterInputData(void *handle, uint32_t idx, const void *input_buffer, const int32_t *input_dims) {
  micro::MaceMicroEngine *engine = static_cast<micro::MaceMicroEngine *>(handle);
  return engine != NULL && engine->RegisterInputData(idx, input_buffer, input_dims) == micro::MACE_SUCCESS;
}

bool @NAME@_Interpret(void *handle) {
  micro::MaceMicroEngine *engine = static_cast<micro::MaceMicroEngine *>(handle);
  return engine != NULL && engine->Run() == micro::MACE_SUCCESS;
}

bool @NAME@_GetInterpretResult(void *handle, const uint32_t idx, void **output_data, const int32_t **output_dims,
                               uint32_t *output_dim_size) {
  micro::MaceMicroEngine *engine = static_cast<micro::MaceMicroEngine *>(handle);
  return engine != NULL &&
         engine->GetOutputData(idx, output_data, output_dims, output_dim_size) == micro::MACE_SUCCESS;
}
"""
_CMAKE = """\
cmake_minimum_required(VERSION 3.13)
project(@NAME@_micro C CXX)
if(NOT TARGET micro)
  add_library(micro STATIC src/micro.cc)
  target_include_directories(micro PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include)
endif()
add_library(model_@NAME@ STATIC src/@NAME@_engine.cc src/@NAME@.c src/@NAME@_weights.c)
target_compile_options(model_@NAME@ PRIVATE -O2 @FLAGS@)
target_include_directories(model_@NAME@ PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
target_link_libraries(model_@NAME@ PUBLIC micro)
find_library(@PREFIX@_MATH m)
if(@PREFIX@_MATH)
  target_link_libraries(model_@NAME@ PUBLIC ${@PREFIX@_MATH})
endif()
"""
_ROW = re.compile(r'^ {2}X\(".*", \w+, (\d+), (\d+), (\d+), ([\d, ]+)\)', re.MULTILINE)


def micro(contents: Contents) -> dict[str, bytes]:
    """``include``, ``src``, ``model`` with the weights for ``CreateMaceMicroEngineFromBinary``, and CMakeLists.txt."""
    name = contents.name
    inputs, outputs = _ports(contents, "INPUTS"), _ports(contents, "OUTPUTS")
    engine = contents.filled(
        _ENGINE,
        PORTS=_tables("inputs", inputs) + _tables("outputs", outputs),
        INPUTS=str(len(inputs)),
        OUTPUTS=str(len(outputs)),
        BYTES=str(len(contents.weights)),
    )
    generated = f"include/micro/codegen/{name}/"
    return {
        "include/micro.h": (_RUNTIME / "micro.h").read_bytes(),
        "include/micro/include/public/micro.h": _PUBLIC.encode(),
        f"{generated}micro_engine_factory.h": contents.filled(_FACTORY),
        f"{generated}micro_engine_c_interface.h": contents.filled(_C_INTERFACE),
        **{f"src/{file}": (_RUNTIME / file).read_bytes() for file in ("micro.cc", "micro_model.h")},
        f"src/{name}_engine.cc": engine,
        **contents.headers("src/"),
        **contents.sources("src/"),
        f"model/{name}.bin": _binary(contents),
        "CMakeLists.txt": contents.filled(_CMAKE, FLAGS=" ".join(contents.application_flags)),
    }


def _ports(contents: Contents, kind: str) -> list[tuple[int, int, int, str]]:
    """Offset, bytes, rank and extents of the inputs or outputs, from the lists in the header."""
    begin = contents.header.index(f"#define {contents.name.upper()}_{kind}(X)")
    lines = contents.header[begin:].splitlines()[1:]
    rows = []
    for line in lines:
        match = _ROW.match(line)
        if match is None:
            break
        offset, count, rank = (int(match[i]) for i in (1, 2, 3))
        rows.append((offset, count, rank, match[4]))
    return rows


def _tables(kind: str, rows: list[tuple[int, int, int, str]]) -> str:
    dims = "".join(f"const int32_t {kind}_dims_{i}[] = {{{row[3]}}};\n" for i, row in enumerate(rows))
    ports = ", ".join(f"{{{row[0]}, {row[1]}, {row[2]}, {kind}_dims_{i}}}" for i, row in enumerate(rows))
    return f"{dims}const model::Port {kind}[] = {{{ports or '{0, 0, 0, NULL}'}}};\n"


def _binary(contents: Contents) -> bytes:
    """Offsets of name, (empty) graph, weights and their end, and sizes of the memory; then name, weights, and room to
    align those."""
    name = contents.name.encode() + b"\0"
    graph = 48 + len(name)
    sizes = {
        kind: int(re.search(rf"^#define {contents.name.upper()}_{kind}_MEM_SIZE (\d+)", contents.header, re.M)[1])  # type: ignore[index]
        for kind in ("MUTABLE", "ACTIVATIONS")
    }
    head = struct.pack("<6q", 48, graph, graph, graph + len(contents.weights), *sizes.values())
    return head + name + contents.weights + bytes(_ALIGNMENT)
