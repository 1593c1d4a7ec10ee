/* A graph on OpenCL whose compiled kernels are kept.  Arguments: the model, the folder for kernels. */

#include <stdbool.h>
#include <stdlib.h>

#include "require.h"
#include "tengine/c_api.h"

typedef struct ocl_option {
  char *dev_name;
  int precision;
  char *cache_path;
  bool load_cache;
  bool store_cache;
} ocl_option;

int main(int count, char **words) {
  static float x[300];
  ENSURE(count == 3 && init_tengine() == 0);
  context_t context = create_context("ocl", 1);
  ocl_option options = {NULL, TENGINE_MODE_FP32, words[2], true, true};
  ENSURE(set_context_device(context, "OCL", &options, sizeof options) == 0);
  graph_t graph = create_graph(context, "tengine", words[1]);
  ENSURE(graph != NULL);
  ENSURE(set_tensor_buffer(get_graph_input_tensor(graph, 0, 0), x, sizeof x) == 0);
  ENSURE(prerun_graph(graph) == 0 && run_graph(graph, 1) == 0);
  ENSURE(postrun_graph(graph) == 0 && destroy_graph(graph) == 0);
  destroy_context(context);
  release_tengine();
  return 0;
}
