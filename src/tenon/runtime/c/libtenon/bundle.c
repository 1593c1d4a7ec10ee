/* The life of an open bundle: references and handles. */

#include "bundle.h"
#include "errors.h"
#include "handle.h"

#include <stdlib.h>

static const HandleKind bundle_kind = {"bundle", "closed"};

Bundle *tn_bundle_new(void) {
  Bundle *bundle = calloc(1, sizeof *bundle);
  if (bundle == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for a bundle"), NULL;
  bundle->references = 1;
  tn_monitor_init(&bundle->monitor);
  return bundle;
}

void tn_bundle_retain(Bundle *bundle) { __atomic_add_fetch(&bundle->references, 1, __ATOMIC_RELAXED); }

void tn_bundle_unload(Bundle *bundle) {
  if (bundle->library.handle != NULL) tn_library_unload(&bundle->library);
  tn_aligned_release(bundle->weights_copy);
  tn_aligned_release(bundle->text_copy);
  tn_file_release(&bundle->weights_file);
  tn_file_release(&bundle->text_file);
  tn_file_release(&bundle->manifest);
  bundle->library.handle = NULL;
  bundle->weights_copy = bundle->text_copy = NULL;
  bundle->queues = NULL;
  bundle->about = (Description){0};
}

void tn_bundle_release(Bundle *bundle) {
  if (bundle == NULL || __atomic_sub_fetch(&bundle->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  tn_bundle_unload(bundle);
  tn_file_release(&bundle->container);
  tn_pool_release(&bundle->pool);
  free(bundle);
}

Bundle *tn_bundle_of(const TenonBundle *handle) { return tn_handle_object(&bundle_kind, handle); }

TenonStatus tn_bundle_give(Bundle *bundle, TenonStatus status, TenonBundle **result) {
  if (status == TENON_OK && (bundle->handle = tn_handle_new(&bundle_kind, bundle)) == NULL)
    status = tn_fail(TENON_OUT_OF_MEMORY, "no room for one more bundle");
  if (status == TENON_OK) *result = bundle->handle;
  else tn_bundle_release(bundle);
  return status;
}

TenonStatus tenon_bundle_close(TenonBundle *handle) {
  Bundle *bundle = tn_bundle_of(handle);
  if (bundle == NULL) return TENON_INVALID_HANDLE;
  tn_handle_end(handle);
  tn_bundle_release(bundle);
  return TENON_OK;
}
