/* An open bundle: its code, its weights, and what it has. */

#ifndef TENON_BUNDLE_H
#define TENON_BUNDLE_H

#include "bundle_device.h"
#include "container.h"
#include "description.h"
#include "queues.h"

typedef int RunFunction(const uint8_t *, uint8_t *, uint8_t *);
typedef void PhaseFunction(const uint8_t *, uint8_t *, uint8_t *, int, int, int, int);
typedef int NextFunction(const uint8_t *, uint8_t *, uint8_t *, int);
typedef void ResetFunction(uint8_t *);

typedef struct {
  const TenonDevice *device;
  BeginPart *begin; /* NULL: its prerun */
  int part_count;   /* the most of a binding */
} PartDevice;

typedef struct {
  int references;
  void *handle;
  Pool pool;
  Description about;
  Monitor monitor; /* of the steps, which are read when they are asked for */
  File manifest, container, weights_file;
  uint8_t *weights_copy;
  File text_file; /* the tables of a language model's texts (text.h); of 0 bytes: there are none */
  uint8_t *text_copy;
  const uint8_t *weights;
  Library library;
  RunFunction **run;
  PhaseFunction **phase; /* NULL: one thread only */
  NextFunction **next;
  ResetFunction **reset; /* of each binding; NULL, and for some: zeros are what its states begin with */
  PhaseFunction *profile;
  NextFunction *profile_next;
  QueueFunctions *queues; /* of each binding, of a network on a GPU or another device; NULL: it runs on processors */
  const char *device_text;          /* that device, once it was asked for */
  PartDevice devices[PART_DEVICES]; /* that run parts of the network */
  int device_count;
  const TenonOpenOptions *model;    /* how the model was opened that this is a bundle of; NULL: it is of no model, or
                                       of an encrypted or transformed one */
  int is_sealed_model;              /* it is of an encrypted or transformed one */
  const char *model_path;           /* NULL: it is in memory */
  File model_content;
} Bundle;

enum { WEIGHTS_ALIGNMENT = 64 };

/* ---- life */
Bundle *tn_bundle_new(void); /* with one reference and without a handle; NULL, and an error text, if there is no memory */
void tn_bundle_retain(Bundle *bundle);
void tn_bundle_release(Bundle *bundle);
Bundle *tn_bundle_of(const TenonBundle *handle); /* NULL, and an error text, if it is not valid */
/* Gives out a handle or, if there was an error, ends the bundle. */
TenonStatus tn_bundle_give(Bundle *bundle, TenonStatus status, TenonBundle **result);

/* ---- content */
/* Verifies and loads manifest, weights and code. */
TenonStatus tn_bundle_load(Bundle *bundle, const BundleFiles *files, const TenonOpenOptions *options);
/* Gives back what was loaded, so that another target's can be. */
void tn_bundle_unload(Bundle *bundle);
/* Finds the devices that a bundle was compiled for, if any, and hides the inputs for them.  With `host_only`, parts that
   are bundles for GPUs run on the processor. */
TenonStatus tn_attach_devices(Bundle *bundle, int host_only);

/* Finds the functions that create and run the network on a GPU, if its library has them (queues.c). */
TenonStatus tn_attach_queues(Bundle *bundle);

/* Compiles the model of a bundle for other shapes, or finds it in the cache: a bundle without a handle. */
TenonStatus tn_bundle_for_shapes(const Bundle *bundle, const char *const *shapes, Bundle **other);

#endif
