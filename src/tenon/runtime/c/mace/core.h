/* Declarations that the files of the MACE layer share. */

#ifndef TENON_MACE_CORE_H
#define TENON_MACE_CORE_H

#include "mace_core.h"
#include "tensors.h"

/* mace::MaceStatus::Code and mace::RuntimeType. */
enum { MACE_SUCCESS = 0, MACE_INVALID_ARGS = 1, MACE_OUT_OF_RESOURCES = 2, MACE_UNSUPPORTED = 3, MACE_RUNTIME_ERROR = 4 };
enum { RT_CPU = 0, RT_OPENCL = 2, RT_NONE = 65534 };

/* An opened network, for some shapes of its inputs; `engine` is NULL until it is needed. */
typedef struct {
  TenonBundle *bundle;
  TenonEngine *engine;
} Network;

struct MaceCore {
  uint64_t mark; /* of an engine that is not destroyed */
  void *graph;   /* a copy; NULL: linked in */
  size_t graph_size;
  const void *weights;
  size_t weights_size;
  char *weights_file;
  MaceCoreConfig config;
  char *gpu; /* lines for the engines of a GPU */
  Network network, profiled;
  int32_t *input_formats, *output_formats;
  uint64_t *nanoseconds;
  MaceCoreStep *steps;
};

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int mc_fail(MaceError *error, int code, const char *format, ...);

/* The code for a status of libtenon, and its text. */
int mc_fail_as(MaceError *error, TenonStatus status);

/* Opens the model for the shapes that its inputs get, each "name=1,2,3"; NULL: its own.  With an engine. */
int mc_open(MaceCore *core, const char *const *shapes, int profile, Network *network, MaceError *error);
void mc_close(Network *network);

/* Whether an allocation is to fail, by MACE_RUNTIME_FAILURE_RATIO: the fraction that does. */
int mc_simulates_failure(void);
/* The lines and those that the environment asks for (MACE_LIMIT_OPENCL_KERNEL_TIME, MACE_OPENCL_QUEUE_WINDOW_SIZE,
   MACE_TUNING with MACE_RUN_PARAMETER_PATH), to be freed; NULL without memory. */
char *mc_gpu_lines(const char *lines);
/* Prints the least and largest element of a tensor of the network, if MACE_LOG_TENSOR_RANGE is 1. */
void mc_log_range(const TenonTensor *tensor, const float *elements);

int mc_valid(const MaceCore *core, MaceError *error);

#endif
