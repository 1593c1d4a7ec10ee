/* The name of c_api.h in older versions. */
#include "tengine/c_api.h"
