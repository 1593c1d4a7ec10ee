#ifndef MACE_PORT_PORT_H_
#define MACE_PORT_PORT_H_

#include "mace/port/port-arch.h"
#include "mace/public/mace.h"
#include "mace/utils/logging.h"

#endif  // MACE_PORT_PORT_H_
