/* The C API of Tengine (tengine-lite), over libtenon: programs written for it compile unchanged.  docs/howto/from-tengine.md
   tells what each function does here.  Functions return 0 and -1, or a handle and NULL. */

#ifndef TENGINE_C_API_H
#define TENGINE_C_API_H

#include <stddef.h>
#include <stdint.h>

#include "tengine/defines.h"

#ifndef DLLEXPORT
#if defined(_WIN32)
#define DLLEXPORT __declspec(dllexport)
#else
#define DLLEXPORT __attribute__((visibility("default")))
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum log_level {
  LOG_EMERG,
  LOG_ALERT,
  LOG_CRIT,
  LOG_ERR,
  LOG_WARNING,
  LOG_NOTICE,
  LOG_INFO,
  LOG_DEBUG
};

enum graph_exec_event {
  GRAPH_EXEC_START,
  GRAPH_EXEC_SUSPEND,
  GRAPH_EXEC_RESUME,
  GRAPH_EXEC_ABORT,
  GRAPH_EXEC_DONE
};

enum graph_exec_stat {
  GRAPH_STAT_CREATED,
  GRAPH_STAT_READY,
  GRAPH_STAT_RUNNING,
  GRAPH_STAT_DONE,
  GRAPH_STAT_ERROR
};

enum device_policy { DEFAULT_POLICY, LATENCY_POLICY, LOW_POWER_POLICY };

typedef void *context_t;
typedef void *graph_t;
typedef void *tensor_t;
typedef void *node_t;

typedef int (*event_handler_t)(graph_t graph, int event, void *argument);
typedef void (*log_print_t)(const char *text);

/* Passed by value: 24 bytes. */
typedef struct options {
  int num_thread;
  int cluster;
  int precision;
  uint64_t affinity;
} options_t;

struct custom_kernel_tensor {
  int dim[MAX_SHAPE_DIM_NUM];
  int dim_num;
  int element_num;
  int element_size;
  int data_type;
  int dev_type;
  int layout_type;
  int quant_type;
  float *scale;
  int *zero_point;
  int *quant_number;
  void *data;
  void *dev_mem;
  void *mapped_mem;
};

struct custom_kernel_ops {
  const char *kernel_name;
  const char *op;
  int force;
  void *kernel_param;
  int kernel_param_size;
  int (*infer_shape)(struct custom_kernel_ops *ops, const int *inputs[], int input_num, int *outputs[], int output_num,
                     int layout);
  int (*inplace_info)(struct custom_kernel_ops *ops, int input);
  int (*bind)(struct custom_kernel_ops *ops, const struct custom_kernel_tensor *inputs[], int input_num,
              const struct custom_kernel_tensor *outputs[], int output_num);
  int (*prerun)(struct custom_kernel_ops *ops, struct custom_kernel_tensor *inputs[], int input_num,
                struct custom_kernel_tensor *outputs[], int output_num, int dynamic_shape);
  int (*reshape)(struct custom_kernel_ops *ops, struct custom_kernel_tensor *inputs[], int input_num,
                 struct custom_kernel_tensor *outputs[], int output_num);
  int (*run)(struct custom_kernel_ops *ops, struct custom_kernel_tensor *inputs[], int input_num,
             struct custom_kernel_tensor *outputs[], int output_num);
  int (*postrun)(struct custom_kernel_ops *ops, struct custom_kernel_tensor *inputs[], int input_num,
                 struct custom_kernel_tensor *outputs[], int output_num);
  void (*release)(struct custom_kernel_ops *ops);
};

/* ---- library */
DLLEXPORT int init_tengine(void);
DLLEXPORT void release_tengine(void);
DLLEXPORT const char *get_tengine_version(void);
DLLEXPORT const char *get_tengine_hcl_version(void);
DLLEXPORT int request_tengine_version(const char *version);
DLLEXPORT int get_tengine_errno(void);
DLLEXPORT int clr_tengine_errno(void);
DLLEXPORT void set_log_level(enum log_level level);
DLLEXPORT void set_log_output(log_print_t print);
DLLEXPORT size_t get_cluster_affinity_mask(int cluster);
DLLEXPORT int load_tengine_plugin(const char *name, const char *file, const char *init_function);
DLLEXPORT int unload_tengine_plugin(const char *name, const char *release_function);
DLLEXPORT int get_tengine_plugin_number(void);
DLLEXPORT const char *get_tengine_plugin_name(int number);

/* ---- contexts and devices */
DLLEXPORT context_t create_context(const char *name, int empty_context);
DLLEXPORT void destroy_context(context_t context);
DLLEXPORT int get_context_device_number(context_t context);
DLLEXPORT int add_context_device(context_t context, const char *device);
DLLEXPORT int remove_context_device(context_t context, const char *device);
DLLEXPORT int set_context_device(context_t context, const char *device, const void *options, size_t options_size);
DLLEXPORT int set_context_attr(context_t context, const char *name, const void *value, int size);
DLLEXPORT int get_context_attr(context_t context, const char *name, void *value, int size);
DLLEXPORT int set_default_device(const char *device);
DLLEXPORT const char *get_default_device(void);

/* ---- graphs */
/* `model_format` "tengine" (or another format that Tenon reads): `file_name` is a path; with ":m" at its end it is the
   model's content, and an int with its size follows.  A context of NULL is a private one. */
DLLEXPORT graph_t create_graph(context_t context, const char *model_format, const char *file_name, ...);
DLLEXPORT int destroy_graph(graph_t graph);
DLLEXPORT int set_graph_layout(graph_t graph, int layout);
DLLEXPORT int set_graph_input_node(graph_t graph, const char *nodes[], int count);
DLLEXPORT int set_graph_output_node(graph_t graph, const char *nodes[], int count);
DLLEXPORT int get_graph_input_node_number(graph_t graph);
DLLEXPORT node_t get_graph_input_node(graph_t graph, int number);
DLLEXPORT int get_graph_output_node_number(graph_t graph);
DLLEXPORT node_t get_graph_output_node(graph_t graph, int number);
DLLEXPORT tensor_t get_graph_input_tensor(graph_t graph, int node, int tensor);
DLLEXPORT tensor_t get_graph_output_tensor(graph_t graph, int node, int tensor);
DLLEXPORT tensor_t get_graph_tensor(graph_t graph, const char *name);
DLLEXPORT node_t get_graph_node(graph_t graph, const char *name);
DLLEXPORT node_t get_graph_node_by_idx(graph_t graph, int number);
DLLEXPORT int get_graph_node_num(graph_t graph);
DLLEXPORT int set_graph_attr(graph_t graph, const char *name, const void *value, int size);
DLLEXPORT int get_graph_attr(graph_t graph, const char *name, void *value, int size);
DLLEXPORT int set_graph_device(graph_t graph, const char *device);
DLLEXPORT int set_graph_thread(graph_t graph, int cluster, int threads);
DLLEXPORT int set_graph_thread_mask(graph_t graph, size_t mask);
DLLEXPORT void dump_graph(graph_t graph);

/* ---- runs */
DLLEXPORT int prerun_graph(graph_t graph);
DLLEXPORT int prerun_graph_multithread(graph_t graph, struct options options);
DLLEXPORT int run_graph(graph_t graph, int block);
DLLEXPORT int wait_graph(graph_t graph, int try_wait);
DLLEXPORT int postrun_graph(graph_t graph);
/* A value of enum graph_exec_stat. */
DLLEXPORT int get_graph_exec_status(graph_t graph);
/* GRAPH_EXEC_START, GRAPH_EXEC_DONE and GRAPH_EXEC_ABORT happen; they are reported on the thread of run_graph. */
DLLEXPORT int set_graph_event_hook(graph_t graph, int event, event_handler_t function, void *argument);

/* ---- nodes */
DLLEXPORT node_t create_graph_node(graph_t graph, const char *name, const char *op);
DLLEXPORT void release_graph_node(node_t node);
DLLEXPORT const char *get_node_name(node_t node);
DLLEXPORT const char *get_node_op(node_t node);
DLLEXPORT const char *get_node_device(node_t node);
/* A device that runs this node, before prerun; other nodes run on the graph's. */
DLLEXPORT int set_node_device(node_t node, const char *device);
DLLEXPORT tensor_t get_node_input_tensor(node_t node, int number);
DLLEXPORT tensor_t get_node_output_tensor(node_t node, int number);
DLLEXPORT int set_node_input_tensor(node_t node, int number, tensor_t tensor);
DLLEXPORT int set_node_output_tensor(node_t node, int number, tensor_t tensor, int tensor_type);
DLLEXPORT int get_node_input_number(node_t node);
DLLEXPORT int get_node_output_number(node_t node);
DLLEXPORT int add_node_attr(node_t node, const char *name, const char *type, int size);
DLLEXPORT int get_node_attr_int(node_t node, const char *name, int *value);
DLLEXPORT int get_node_attr_float(node_t node, const char *name, float *value);
DLLEXPORT int get_node_attr_pointer(node_t node, const char *name, void *value);
DLLEXPORT int get_node_attr_generic(node_t node, const char *name, const char *type, void *value, int size);
DLLEXPORT int set_node_attr_int(node_t node, const char *name, const int *value);
DLLEXPORT int set_node_attr_float(node_t node, const char *name, const float *value);
DLLEXPORT int set_node_attr_pointer(node_t node, const char *name, const void *value);
DLLEXPORT int set_node_attr_generic(node_t node, const char *name, const char *type, const void *value, int size);
DLLEXPORT int set_custom_kernel(node_t node, const char *device, struct custom_kernel_ops *ops);
DLLEXPORT int remove_custom_kernel(node_t node, const char *device);

/* ---- tensors */
DLLEXPORT tensor_t create_graph_tensor(graph_t graph, const char *name, int data_type);
DLLEXPORT void release_graph_tensor(tensor_t tensor);
DLLEXPORT const char *get_tensor_name(tensor_t tensor);
/* The number of dimensions; -1 if `dims` is too short. */
DLLEXPORT int get_tensor_shape(tensor_t tensor, int dims[], int dim_number);
DLLEXPORT int set_tensor_shape(tensor_t tensor, const int dims[], int dim_number);
DLLEXPORT int get_tensor_buffer_size(tensor_t tensor);
DLLEXPORT void *get_tensor_buffer(tensor_t tensor);
/* The buffer is kept and read by every run; its size must be that of the tensor. */
DLLEXPORT int set_tensor_buffer(tensor_t tensor, void *buffer, int size);
DLLEXPORT int get_tensor_data(tensor_t tensor, void *data, int size);
DLLEXPORT int set_tensor_data(tensor_t tensor, const void *data, int size);
DLLEXPORT int get_tensor_data_type(tensor_t tensor);
DLLEXPORT int set_tensor_data_type(tensor_t tensor, int data_type);
DLLEXPORT int get_tensor_layout(tensor_t tensor);
DLLEXPORT int set_tensor_layout(tensor_t tensor, int layout);
/* The number of scales: 1, or 0 of a tensor that is not quantised; -1 if `number` is too small. */
DLLEXPORT int get_tensor_quant_param(tensor_t tensor, float *scale, int *zero_point, int number);
DLLEXPORT int set_tensor_quant_param(tensor_t tensor, const float *scale, const int *zero_point, int number);

#ifdef __cplusplus
}
#endif

#endif
