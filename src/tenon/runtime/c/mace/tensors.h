/* Tensors of the program and of the network: formats of images, types of elements. */

#ifndef TENON_MACE_TENSORS_H
#define TENON_MACE_TENSORS_H

#include "mace_core.h"

enum { FORMAT_NONE = 0, NHWC = 1, NCHW = 2, FORMAT_UNKNOWN = -1 };

/* How a tensor of the program lies in one of the network. */
typedef struct {
  int64_t shape[TENON_MAX_RANK]; /* of the program's, in the network's order of axes */
  int turned;                    /* 0: the same order, NHWC: the program has NHWC and the network NCHW; NCHW: reversed */
} Placement;

/* `format` is that of the network's tensor, if it is known. */
Placement mc_placement(const TenonTensor *tensor, int format, const MaceCoreTensor *own);

/* The TenonType of a mace::IDataType; TENON_OTHER_TYPE if there is none. */
TenonType mc_type(int32_t data_type);

/* Copy with conversion of types; `shape` is the network's.  0 if a type cannot be converted. */
int mc_to_network(const TenonTensor *tensor, const int64_t *shape, const Placement *placement, TenonType type,
                  const void *from, void *to);
int mc_from_network(const TenonTensor *tensor, const int64_t *shape, const Placement *placement, TenonType type,
                    const void *from, void *to);

/* The data format that the graph of a MACE model gives for an input or output; FORMAT_UNKNOWN if none. */
int mc_format_of(const uint8_t *graph, size_t size, const char *name);

#endif
