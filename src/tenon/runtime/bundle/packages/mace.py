"""The network as a model in code for MACE's C++ API: ``CreateMaceEngineFromCode`` and the static library."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from tenon.runtime.bundle.header import c_text
from tenon.runtime.bundle.packages.contents import Contents

_MODEL = """\
// The model @NAME@ in code: link lib@NAME@.a, libmace and libtenon.

#ifndef MACE_PUBLIC_MODEL_@PREFIX@_H_
#define MACE_PUBLIC_MODEL_@PREFIX@_H_

#include "@NAME@_weights.h"
#include "mace/public/mace.h"

namespace mace {
namespace @NAME@ {

inline const unsigned char *LoadModelData() { return @NAME@_weights; }
inline int64_t GetModelSize() { return @BYTES@; }

inline const std::shared_ptr<MultiNetDef> CreateMultiNet() {
  static const char layout[] =
@LAYOUT@;
  static int (*const run[])(const uint8_t *, uint8_t *, uint8_t *) = {@RUN@};
@PHASES@@RESETS@@STEPS@  TenonLinked linked = TenonLinked();
  linked.struct_size = sizeof linked;
  linked.name = "@NAME@";
  linked.layout = layout;
  linked.layout_bytes = sizeof layout - 1;
  linked.weights = @NAME@_weights;
  linked.weights_bytes = @BYTES@;
  linked.run = run;
@SET_PHASES@@SET_RESETS@@SET_STEPS@  return std::make_shared<MultiNetDef>(linked);
}

inline const std::string ModelName() { return "@NAME@"; }
inline const std::string ModelChecksum() { return "@CHECKSUM@"; }  // SHA-256 of the weights
inline const std::string ModelBuildTime() { return std::string(); }  // the same model gives the same bytes
inline const std::string ModelBuildOptions() { return "@ABOUT@"; }

}  // namespace @NAME@
}  // namespace mace

#endif  // MACE_PUBLIC_MODEL_@PREFIX@_H_
"""
_FACTORY = """\
// Engines of models in code.

#ifndef MACE_CODEGEN_ENGINE_MACE_ENGINE_FACTORY_H_
#define MACE_CODEGEN_ENGINE_MACE_ENGINE_FACTORY_H_

#include "mace/public/mace.h"
@INCLUDES@
namespace mace {
namespace factory_internal {

// nullptr if there is no such model.
inline std::shared_ptr<MultiNetDef> Model(const std::string &name) {
@MODELS@  return nullptr;
}

inline MaceStatus Unknown(const std::string &name) {
  return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "no model in code is called '" + name + "'");
}

}  // namespace factory_internal

// Weights are nullptr and 0, or the content of a file with those of the model (NAME.weights.bin), which has to stay.
inline MaceStatus CreateMaceEngineFromCode(
    const std::string &model_name, const unsigned char *model_weights_data, const size_t model_weights_data_size,
    const std::vector<std::string> &input_nodes, const std::vector<std::string> &output_nodes,
    const MaceEngineConfig &config, std::shared_ptr<MaceEngine> *engine, bool *model_data_unused = nullptr,
    MaceEngine *tutor = nullptr, bool fake_warmup = false) {
  if (engine == nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "the engine is NULL");
  const auto model = factory_internal::Model(model_name);
  if (model == nullptr) return factory_internal::Unknown(model_name);
  auto made = std::make_shared<MaceEngine>(config);
  const MaceStatus status =
      made->Init(model.get(), input_nodes, output_nodes, model_weights_data,
                 static_cast<int64_t>(model_weights_data_size), model_data_unused, tutor, fake_warmup);
  if (status == MaceStatus()) *engine = made;
  return status;
}

// Deprecated in MACE.  The name of a file of weights is not used: those of the model are linked in.
inline MaceStatus CreateMaceEngineFromCode(
    const std::string &model_name, const std::string &model_data_file, const std::vector<std::string> &input_nodes,
    const std::vector<std::string> &output_nodes, const MaceEngineConfig &config, std::shared_ptr<MaceEngine> *engine,
    MaceEngine *tutor = nullptr) {
  static_cast<void>(model_data_file);
  return CreateMaceEngineFromCode(model_name, nullptr, 0, input_nodes, output_nodes, config, engine, nullptr, tutor);
}

}  // namespace mace

#endif  // MACE_CODEGEN_ENGINE_MACE_ENGINE_FACTORY_H_
"""
_SET_STEPS = """\
  linked.profile = ::@ENTRY@_profile;
  linked.profile_next = ::@ENTRY@_profile_next;
  linked.steps = steps;
  linked.step_count = sizeof steps / sizeof *steps;
"""
_ALIAS = '#include "mace/public/mace_engine_factory.h"\n'


def mace(contents: Contents) -> dict[str, bytes]:
    """``include``, with the model and the factory as MACE names them, and ``lib``."""
    name, layout = contents.name, contents.layout()
    entries = re.findall(r"^entry (\w+) mutable ", layout, re.MULTILINE)
    threaded, timed, keeps = (f"void {name}_{end}(" in contents.header for end in ("phase", "profile", "reset"))
    model = contents.filled(
        _MODEL,
        LAYOUT="\n".join(f'      "{c_text(line)}\\n"' for line in layout.splitlines()).removesuffix('\\n"') + '"',
        RUN=", ".join(f"::{entry}" for entry in entries),
        PHASES=_phases(entries) if threaded else "",
        SET_PHASES="  linked.phase = phase;\n  linked.next = next;\n" if threaded else "",
        RESETS=_resets(entries) if keeps else "",
        SET_RESETS="  linked.reset = reset;\n" if keeps else "",
        STEPS=_steps(contents) if timed else "",
        SET_STEPS=_SET_STEPS.replace("@ENTRY@", entries[0]) if timed else "",
        BYTES=str(len(contents.weights)),
        CHECKSUM=hashlib.sha256(contents.weights).hexdigest(),
    )
    return {
        f"include/mace/public/{name}.h": model,
        "include/mace/public/mace_engine_factory.h": engine_factory((name,)).encode(),
        "include/mace/codegen/engine/mace_engine_factory.h": _ALIAS.encode(),
        **contents.headers("include/"),
        f"lib/lib{name}.a": contents.archive(),
        f"model/{name}.weights.bin": contents.weights,
    }


def engine_factory(names: Sequence[str]) -> str:
    """``mace_engine_factory.h`` for several models in code."""
    models = "".join(f'  if (name == "{name}") return {name}::CreateMultiNet();\n' for name in names)
    includes = "".join(f'#include "mace/public/{name}.h"\n' for name in names)
    return _FACTORY.replace("@INCLUDES@", includes).replace("@MODELS@", models)


def _steps(contents: Contents) -> str:
    """The kernel calls, for ``RunMetadata``."""
    calls = json.loads(contents.manifest())["nodes"]
    rows = [
        ", ".join([*(f'"{c_text(call[key])}"' for key in ("layer", "op", "kernel")), str(call["macs"])])
        for call in calls
    ]
    return "  static const TenonStep steps[] = {\n" + "".join(f"      {{{row}, {{0}}}},\n" for row in rows) + "  };\n"


def _phases(entries: Sequence[str]) -> str:
    phase, following = (", ".join(f"::{entry}_{end}" for entry in entries) for end in ("phase", "next"))
    return (
        f"  static void (*const phase[])(const uint8_t *, uint8_t *, uint8_t *, int, int, int, int) = {{{phase}}};\n"
        f"  static int (*const next[])(const uint8_t *, uint8_t *, uint8_t *, int) = {{{following}}};\n"
    )


def _resets(entries: Sequence[str]) -> str:
    listed = ", ".join(f"::{entry}_reset" for entry in entries)
    return f"  static void (*const reset[])(uint8_t *) = {{{listed}}};\n"
