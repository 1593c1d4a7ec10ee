/* Functions that describe a bundle. */

#include "bundle.h"
#include "errors.h"

#include <string.h>

const char *tenon_bundle_name(const TenonBundle *handle) {
  const Bundle *bundle = tn_bundle_of(handle);
  return bundle != NULL ? bundle->about.name : NULL;
}

const char *tenon_bundle_target(const TenonBundle *handle) {
  const Bundle *bundle = tn_bundle_of(handle);
  return bundle != NULL ? bundle->about.target : NULL;
}

const char *tenon_bundle_manifest(const TenonBundle *handle) {
  const Bundle *bundle = tn_bundle_of(handle);
  return bundle != NULL ? (const char *)bundle->manifest.data : NULL;
}

int tenon_bundle_max_threads(const TenonBundle *handle) {
  const Bundle *bundle = tn_bundle_of(handle);
  return bundle != NULL ? bundle->about.threads : -1;
}

int tenon_bundle_binding_count(const TenonBundle *handle) {
  const Bundle *bundle = tn_bundle_of(handle);
  return bundle != NULL ? bundle->about.binding_count : -1;
}

int tenon_bundle_input_count(const TenonBundle *handle) {
  const Bundle *bundle = tn_bundle_of(handle);
  return bundle != NULL ? bundle->about.bindings->input_count : -1;
}

int tenon_bundle_output_count(const TenonBundle *handle) {
  const Bundle *bundle = tn_bundle_of(handle);
  return bundle != NULL ? bundle->about.bindings->output_count : -1;
}

/* NULL if they cannot be read. */
static const Description *with_steps(const TenonBundle *handle) {
  Bundle *bundle = tn_bundle_of(handle);
  if (bundle == NULL) return NULL;
  tn_lock(&bundle->monitor);
  const TenonStatus status = tn_read_steps(&bundle->pool, bundle->about.name, &bundle->about);
  tn_unlock(&bundle->monitor);
  return status == TENON_OK ? &bundle->about : NULL;
}

int tenon_bundle_step_count(const TenonBundle *handle) {
  const Description *about = with_steps(handle);
  return about != NULL ? about->step_count : -1;
}

static TenonStatus null_result(const char *what) { return tn_fail(TENON_INVALID_ARGUMENT, "%s: the result is NULL", what); }

TenonStatus tenon_bundle_memory(const TenonBundle *handle, TenonMemory *memory) {
  const Bundle *bundle = tn_bundle_of(handle);
  if (bundle == NULL) return TENON_INVALID_HANDLE;
  if (memory == NULL) return null_result("tenon_bundle_memory");
  memset(memory, 0, sizeof *memory);
  memory->weights = bundle->about.constant;
  memory->tensors = bundle->about.mutable_bytes;
  memory->activations = bundle->about.activations;
  return TENON_OK;
}

static TenonStatus describe(const TenonBundle *handle, int binding, int number, int output, TenonTensor *tensor) {
  const Bundle *bundle = tn_bundle_of(handle);
  if (bundle == NULL) return TENON_INVALID_HANDLE;
  if (tensor == NULL) return null_result(output ? "tenon_bundle_output" : "tenon_bundle_input");
  const Binding *chosen;
  const Port *port;
  TenonStatus status = tn_find_binding(&bundle->about, binding, &chosen);
  if (status == TENON_OK) status = tn_find_port(&bundle->about, chosen, number, output, &port);
  if (status == TENON_OK) *tensor = port->tensor;
  return status;
}

TenonStatus tenon_bundle_input(const TenonBundle *handle, int binding, int input, TenonTensor *tensor) {
  return describe(handle, binding, input, 0, tensor);
}

TenonStatus tenon_bundle_output(const TenonBundle *handle, int binding, int output, TenonTensor *tensor) {
  return describe(handle, binding, output, 1, tensor);
}

static TenonStatus find(const TenonBundle *handle, const char *name, int output, int *number) {
  const Bundle *bundle = tn_bundle_of(handle);
  if (bundle == NULL) return TENON_INVALID_HANDLE;
  const char *what = output ? "output" : "input";
  if (name == NULL || number == NULL)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_find_%s: %s is NULL", what, name == NULL ? "the name" : "the result");
  const Binding *first = bundle->about.bindings;
  const Port *ports = output ? first->outputs : first->inputs;
  const int count = output ? first->output_count : first->input_count;
  for (int i = 0; i < count; i++)
    if (strcmp(ports[i].tensor.name, name) == 0) {
      *number = i;
      return TENON_OK;
    }
  return tn_fail(TENON_NOT_FOUND, "%s has no %s '%s'%s%s%s", bundle->about.name, what, name, count ? ": the first is '" : "",
                 count ? ports[0].tensor.name : "", count ? "'" : "");
}

TenonStatus tenon_bundle_find_input(const TenonBundle *handle, const char *name, int *input) {
  return find(handle, name, 0, input);
}

TenonStatus tenon_bundle_find_output(const TenonBundle *handle, const char *name, int *output) {
  return find(handle, name, 1, output);
}

TenonStatus tenon_bundle_step(const TenonBundle *handle, int step, TenonStep *description) {
  if (tn_bundle_of(handle) == NULL) return TENON_INVALID_HANDLE;
  if (description == NULL) return null_result("tenon_bundle_step");
  const Description *about = with_steps(handle);
  if (about == NULL) return TENON_DAMAGED;
  if (step < 0 || step >= about->step_count)
    return tn_fail(TENON_NOT_FOUND, "%s has no step %d: it has %d, from 0 on", about->name, step, about->step_count);
  *description = about->steps[step];
  return TENON_OK;
}
