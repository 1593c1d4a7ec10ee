/* The C functions of libmace, which the C++ classes of mace.h call: programs use those.

   The classes are inline, so that a program and libmace need not have the same C++ standard library.  Statuses are the
   codes of mace::MaceStatus; a text goes to `error` if it is not MACE_SUCCESS.  Formats and types of tensors are the
   numbers of mace::DataFormat and mace::IDataType. */

#ifndef MACE_PUBLIC_MACE_CORE_H_
#define MACE_PUBLIC_MACE_CORE_H_

#include <stddef.h>
#include <stdint.h>

#include "tenon.h"

#ifndef MACE_CORE_API
#if defined(_WIN32) && defined(TENON_BUILD_SHARED)
#define MACE_CORE_API __declspec(dllexport)
#elif defined(_WIN32) && !defined(TENON_STATIC)
#define MACE_CORE_API __declspec(dllimport)
#elif defined(__GNUC__)
#define MACE_CORE_API __attribute__((visibility("default")))
#else
#define MACE_CORE_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MaceCore MaceCore;

typedef struct MaceError {
  char text[512];
} MaceError;

/* The source of an engine: one of graph (a model or a bundle, in memory) and linked (compiled into the program).
   The graph is copied; weights must stay as long as the engine.  Weights of a linked model may be NULL if the program
   holds them as well. */
typedef struct MaceModel {
  const void *graph;
  size_t graph_size;
  const void *weights;
  size_t weights_size;
  const char *weights_file; /* instead of weights in memory */
  const TenonLinked *linked;
} MaceModel;

typedef struct MaceCoreConfig {
  int32_t runtime;  /* mace::RuntimeType */
  int32_t threads;  /* 0 or less: all cores that the policy allows */
  int32_t policy;   /* mace::CPUAffinityPolicy */
  int32_t warm_up;  /* 1: run once on zeros */
  MaceCore *tutor;  /* shares its memory of intermediate results; NULL: none */
  const char *gpu;  /* of a GPU: lines as TenonEngineOptions has; NULL: none */
} MaceCoreConfig;

typedef struct MaceCoreTensor {
  const char *name;
  void *data;
  int64_t shape[TENON_MAX_RANK];
  int32_t rank, format, type;
} MaceCoreTensor;

typedef struct MaceCoreStep {
  const char *layer, *op; /* as long as the engine */
  int64_t start_micros, end_micros;
} MaceCoreStep;

MACE_CORE_API int mace_core_create(const MaceModel *model, const char *const *inputs, size_t input_count,
                                   const char *const *outputs, size_t output_count, const MaceCoreConfig *config,
                                   MaceCore **core, MaceError *error);

/* Shapes of outputs become those of the results. */
MACE_CORE_API int mace_core_run(MaceCore *core, const MaceCoreTensor *inputs, size_t input_count,
                                MaceCoreTensor *outputs, size_t output_count, MaceError *error);

/* The same with the time of every kernel call; none for a network that was compiled without --profile.  `steps` stay until the next call. */
MACE_CORE_API int mace_core_profile(MaceCore *core, const MaceCoreTensor *inputs, size_t input_count,
                                    MaceCoreTensor *outputs, size_t output_count, const MaceCoreStep **steps,
                                    size_t *step_count, MaceError *error);

MACE_CORE_API int mace_core_release_memory(MaceCore *core, MaceError *error);
MACE_CORE_API void mace_core_destroy(MaceCore *core);

/* Milliseconds of a fixed computation on one thread. */
MACE_CORE_API float mace_core_cpu_time(void);
MACE_CORE_API int64_t mace_core_micros(void); /* monotonic */
MACE_CORE_API const char *mace_core_version(void);

#ifdef __cplusplus
}
#endif

#endif /* MACE_PUBLIC_MACE_CORE_H_ */
