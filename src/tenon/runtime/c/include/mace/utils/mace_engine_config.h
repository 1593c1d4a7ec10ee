// MaceEngineCfgImpl is declared with the engine.

#ifndef MACE_UTILS_MACE_ENGINE_CONFIG_H_
#define MACE_UTILS_MACE_ENGINE_CONFIG_H_

#include "mace/public/mace.h"

#endif  // MACE_UTILS_MACE_ENGINE_CONFIG_H_
