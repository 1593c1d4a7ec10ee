/* Sizes, types and data of tensors. */

#ifndef TENON_TENGINE_TENSOR_H
#define TENON_TENGINE_TENSOR_H

#include "graph.h"

int64_t tg_element_bytes(int data_type); /* 0 if it is unknown */
int64_t tg_bytes(const Tensor *tensor);
int tg_data_type(TenonType type); /* -1 if Tengine has none */
/* Programs that know only tensors of four dimensions put ones around those that a model has. */
int tg_same_but_for_ones(const int *a, int a_count, const int *b, int b_count);
const void *tg_data(const Tensor *tensor); /* where its elements are; NULL if nowhere yet */

#endif
