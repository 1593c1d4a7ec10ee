/* libtenon: run compiled neural networks from C, C++ and other languages.

   A bundle is what `tenon compile` writes: a folder, or one file that ends in .tenon, which may hold code for several
   targets.  An engine is a bundle with memory of its own, to run it.

       TenonBundle *bundle;
       TenonEngine *engine;
       if (tenon_bundle_open("net.tenon", NULL, &bundle) != TENON_OK) return fail(tenon_last_error());
       if (tenon_engine_create(bundle, NULL, &engine) != TENON_OK) return fail(tenon_last_error());
       tenon_engine_set_input(engine, 0, pixels, sizeof pixels);
       tenon_engine_run(engine);
       tenon_engine_get_output(engine, 0, scores, sizeof scores);
       tenon_engine_destroy(engine);
       tenon_bundle_close(bundle);

   Every function that can fail returns a TenonStatus, and writes results only if it is TENON_OK.  Handles are checked:
   NULL, a closed bundle or a destroyed engine gives TENON_INVALID_HANDLE.  Pointers to memory of the caller are not.

   Threads: different engines run at the same time, also of one bundle.  One engine is used by one thread at a time; a
   call during a run gives TENON_BUSY.  Closing a handle while another thread uses it is an error of the program.

   A bundle is native code: open only bundles from sources that you trust to run programs.  All checksums are verified
   before any code is loaded, which detects damage and not forgery. */

#ifndef TENON_H
#define TENON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TENON_VERSION "0.1.0"

/* The version of this interface; tenon_abi_version() is that of the library.  Functions and fields are only added at
   the end, so a library serves every program of its own or an older version. */
#define TENON_ABI_VERSION 1

#ifndef TENON_API
#if defined(_WIN32) && defined(TENON_BUILD_SHARED)
#define TENON_API __declspec(dllexport)
#elif defined(_WIN32) && !defined(TENON_STATIC)
#define TENON_API __declspec(dllimport)
#elif defined(__GNUC__)
#define TENON_API __attribute__((visibility("default")))
#else
#define TENON_API
#endif
#endif

typedef enum TenonStatus {
  TENON_OK = 0,
  TENON_INVALID_HANDLE = 1,   /* NULL, closed, destroyed, or not of this library */
  TENON_INVALID_ARGUMENT = 2, /* NULL where a pointer is needed, a number out of range */
  TENON_NOT_FOUND = 3,        /* no such file, input, output or binding */
  TENON_WRONG_SIZE = 4,       /* a buffer's bytes, or a shape, are not what the network has */
  TENON_DAMAGED = 5,          /* a bundle that was changed, or is incomplete */
  TENON_WRONG_MACHINE = 6,    /* the bundle has no code for this machine */
  TENON_OUT_OF_MEMORY = 7,
  TENON_SYSTEM = 8,           /* the operating system refused something */
  TENON_BUSY = 9,             /* the engine runs */
  TENON_WRONG_STATE = 10,     /* nothing to wait for, and the like */
  TENON_UNSUPPORTED = 11,     /* the bundle was compiled without it, or the system lacks it */
  TENON_NO_COMPILER = 12,     /* a model instead of a bundle, and no compiler is installed */
  TENON_COMPILE_FAILED = 13,  /* the compiler refused the model */
  TENON_TIMEOUT = 14,
  TENON_RUN_FAILED = 15,      /* the network returned an error */
  TENON_WRONG_KEY = 16,       /* an encrypted bundle, and no key or that of another one; or a key, and no encrypted bundle */
  TENON_NOT_SIGNED = 17       /* not signed by whom it has to be, changed since, or an older version than is accepted */
} TenonStatus;

typedef enum TenonType {
  TENON_OTHER_TYPE = 0, /* an element type without a constant: see TenonTensor.type_name */
  TENON_F32 = 1, TENON_F64 = 2, TENON_F16 = 3, TENON_BF16 = 4,
  TENON_I8 = 5, TENON_U8 = 6, TENON_I16 = 7, TENON_U16 = 8,
  TENON_I32 = 9, TENON_U32 = 10, TENON_I64 = 11, TENON_U64 = 12, TENON_BOOL = 13 /* one byte, 0 or 1 */
} TenonType;

#define TENON_MAX_RANK 16

typedef struct TenonBundle TenonBundle;
typedef struct TenonEngine TenonEngine;

/* An input or output.  The texts live as long as the bundle. */
typedef struct TenonTensor {
  const char *name;
  const char *type_name; /* "f32", "i8", ... */
  TenonType type;
  int32_t rank;
  int64_t shape[TENON_MAX_RANK]; /* row-major, the last axis contiguous */
  uint64_t bytes;
  int32_t quantised; /* 1: an element q stands for scale * (q - zero_point) */
  int32_t zero_point;
  double scale;
  int32_t string; /* 1: UTF-8 strings along the last axis, zeros behind the end of a shorter one */
  /* Bit i: only a run knows the extent of axis i, and `shape` has the largest.  Rows lie as far from each other as in the
     largest tensor.  See tenon_engine_set_input_shape and tenon_engine_output_shape. */
  int32_t dynamic_axes;
  /* 1: an input, an i64, that holds such an extent: from `least` to `most`, in steps of `step`. */
  int32_t is_size;
  /* 1: a state, an input and an output in one place: what a run leaves there, the next one finds.  It need not be set.
     See tenon_engine_reset. */
  int32_t is_state;
  int64_t least, most, step;
} TenonTensor;

typedef struct TenonMemory {
  uint64_t weights;     /* bytes, read-only and shared by all engines of a bundle */
  uint64_t tensors;     /* inputs and outputs of an engine */
  uint64_t activations; /* intermediate results of an engine, which engines can share */
  uint64_t reserved_[5];
} TenonMemory;

/* A kernel call of a run; the texts live as long as the bundle. */
typedef struct TenonStep {
  const char *layer, *op, *kernel;
  uint64_t macs; /* multiply-accumulates */
  uint64_t reserved_[4];
} TenonStep;

/* ------------------------------------------------------------------------------------------------ versions, errors */

/* The version of the library, as TENON_VERSION is that of this header; and of its interface, as TENON_ABI_VERSION. */
TENON_API const char *tenon_version(void);
TENON_API uint32_t tenon_abi_version(void);

/* "TENON_OK" and so on; "unknown status" for other numbers. */
TENON_API const char *tenon_status_name(TenonStatus status);

/* The error of the last call of this thread that failed: what, where, and what to do; "" before any did. */
TENON_API const char *tenon_last_error(void);

/* --------------------------------------------------------------------------------------------------------- devices */

/* A device runs parts of networks that were compiled for it (`tenon compile --offload`, or `device` below).  Bundles find it
   by its name when they are opened: among those that were loaded or registered, then in the plug-ins that
   TENON_DEVICE_PLUGINS lists ("PATH" or "PATH=ARGUMENT", separated as in PATH).  Devices stay until the program ends. */
struct TenonDevice; /* tenon_device.h */

/* Loads a plug-in; `argument` is what it asks for beside its path, or NULL. */
TENON_API TenonStatus tenon_device_load(const char *path, const char *argument);

/* A device of the program itself, which must stay as it is. */
TENON_API TenonStatus tenon_device_register(const struct TenonDevice *device);

/* Product and version of a device; NULL if there is none of that name. */
TENON_API const char *tenon_device_describe(const char *name);

/* --------------------------------------------------------------------------------------------------------- bundles */

#define TENON_KEY_BYTES 32
#define TENON_PUBLIC_KEY_BYTES 32

/* Gives the key of an encrypted bundle, for example of a system's key store; 0, or anything else for an error. */
typedef int (*TenonKeyFunction)(void *context, uint8_t key[TENON_KEY_BYTES]);

/* Changes the content of a file in place, a private copy, before anything of it is used: undoes what a program did to it
   when it was stored.  0, or anything else for an error. */
typedef int (*TenonTransform)(void *context, uint8_t *data, size_t bytes);

/* How to open; TENON_OPEN_OPTIONS_INIT first, then set fields.  A NULL pointer means the defaults.  The fields from
   `model_name` to `compile_seconds` are for models: files of any format that `tenon compile` reads.  They are compiled by
   the command that TENON names, else by `tenon`, else by `python3 -I -m tenon`; the bundle is kept in TENON_CACHE
   (default: XDG_CACHE_HOME/tenon or ~/.cache/tenon) by the model's content and these options.

   The key of an encrypted bundle or model (tenon encrypt) is `key`, else what `key_function` gives, else that of `key_file`
   (32 bytes or 64 hexadecimal digits), else that of the environment: 64 digits in TENON_KEY, or the name of a file in
   TENON_KEY_FILE.  With a key, a bundle that is not encrypted is refused (TENON_WRONG_KEY).  The bundle of an encrypted
   model, and of any model with a key in these options, is kept encrypted with it. */
typedef struct TenonOpenOptions {
  size_t struct_size;
  int32_t skip_checksums; /* 1: trust code and weights to be undamaged; the manifest is always verified */
  int32_t never_compile;  /* 1: a model is TENON_NO_COMPILER */
  const char *target;     /* of the code to take from a .tenon file, or to compile for; NULL: the best for this machine,
                             or of a .tenon file that which TENON_OPEN_TARGET names.  Of several ("opencl,host") the
                             first of a .tenon file whose device there is; "host" is the best for the processor, which
                             runs the parts for GPUs as well */
  const char *model_name; /* of a model in memory: a file name, whose ending may tell the format */
  const char *weights;    /* path of a second file of the model */
  const char *const *shapes;    /* NULL-terminated, each "name=1,3,224,224", as for --shape */
  const char *const *arguments; /* NULL-terminated, further arguments of `tenon compile` */
  int32_t threads;              /* the most threads that a compiled model can use; 0: the compiler's default */
  int32_t compile_seconds;      /* time limit; 0: 600 */
  const uint8_t *key;           /* TENON_KEY_BYTES bytes */
  const char *key_file;
  TenonKeyFunction key_function;
  void *key_context;
  TenonTransform transform;
  void *transform_context;
  const void *weights_data; /* the content of the second file of a model in memory, if `weights` is NULL; stays as well */
  size_t weights_bytes;
  const uint8_t *public_key; /* TENON_PUBLIC_KEY_BYTES: a .tenon file has to be signed with Ed25519 by its owner */
  const char *device;        /* the names of devices, separated by commas, that run the parts of a model which they
                                support, or a GPU target ("opencl") for the parts that are faster there */
  int64_t minimum_version;   /* with public_key: the oldest version of a signed file (tenon sign --version) that is accepted */
} TenonOpenOptions;

#define TENON_OPEN_OPTIONS_INIT \
  {sizeof(TenonOpenOptions), 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, \
   NULL, NULL, 0}

/* Opens the folder of a bundle, a .tenon file, or a model. */
TENON_API TenonStatus tenon_bundle_open(const char *path, const TenonOpenOptions *options, TenonBundle **bundle);

/* The same for the content of a .tenon file or of a model, which must stay as it is until the bundle is closed and the
   last of its engines destroyed.  Weights at a multiple of 64 bytes are used where they are, others are copied. */
TENON_API TenonStatus tenon_bundle_open_memory(const void *data, size_t bytes, const TenonOpenOptions *options,
                                               TenonBundle **bundle);

/* Applies an update (tenon delta) to the .tenon file that it was made from, and puts the result at `new_path`, which may be
   `old_path`: written beside it, and renamed when the digests of both have been verified, and with a `public_key`
   (TENON_PUBLIC_KEY_BYTES) the signature of the result.  On an error the file there stays.  Needs about twice the memory
   of the new file. */
TENON_API TenonStatus tenon_patch(const char *old_path, const char *delta_path, const char *new_path,
                                  const uint8_t *public_key);

/* A bundle that is linked into the program: its entry point, weights and layout, from NAME.o, NAME.weights.bin and
   the library's NAME_layout.  All must live as long as the bundle.  The struct itself is copied.  Programs that were
   compiled when it ended before `profile` set the size that it had then. */
typedef struct TenonLinked {
  size_t struct_size;
  const char *name;
  const char *layout; /* layout_bytes long */
  size_t layout_bytes;
  const void *weights; /* at a multiple of 64 bytes */
  size_t weights_bytes;
  int (*const *run)(const uint8_t *, uint8_t *, uint8_t *); /* NAME, NAME_2, ...: one for each binding */
  void (*const *phase)(const uint8_t *, uint8_t *, uint8_t *, int, int, int, int); /* NAME_phase, ...; NULL: one thread */
  int (*const *next)(const uint8_t *, uint8_t *, uint8_t *, int); /* NAME_next, ...; NULL: one thread */
  void (*profile)(const uint8_t *, uint8_t *, uint8_t *, int, int, int, int); /* NAME_profile, with --profile; or NULL */
  int (*profile_next)(const uint8_t *, uint8_t *, uint8_t *, int); /* NAME_profile_next, with --profile; or NULL */
  const TenonStep *steps; /* the calls that `profile` times */
  size_t step_count;
  void (*const *reset)(uint8_t *); /* NAME_reset, ...; NULL: the network has no states, or all begin as zeros */
} TenonLinked;

TENON_API TenonStatus tenon_bundle_from_program(const TenonLinked *linked, TenonBundle **bundle);

/* Engines that still exist keep what they need. */
TENON_API TenonStatus tenon_bundle_close(TenonBundle *bundle);

/* The network's name, and the target that its code is for; NULL for an invalid handle. */
TENON_API const char *tenon_bundle_name(const TenonBundle *bundle);
TENON_API const char *tenon_bundle_target(const TenonBundle *bundle);

/* The text of manifest.json (docs/reference/bundles.md), zero-terminated; NULL for an invalid handle or a linked bundle. */
TENON_API const char *tenon_bundle_manifest(const TenonBundle *bundle);

/* The bytes of the weights, which engines share, and of the memory of one engine. */
TENON_API TenonStatus tenon_bundle_memory(const TenonBundle *bundle, TenonMemory *memory);

/* The most threads that a run can use. */
TENON_API int tenon_bundle_max_threads(const TenonBundle *bundle);

/* A binding is a choice of all input shapes; they are numbered from 0.  Inputs and outputs are numbered alike in all.
   Counts are -1 for an invalid handle. */
TENON_API int tenon_bundle_binding_count(const TenonBundle *bundle);
TENON_API int tenon_bundle_input_count(const TenonBundle *bundle);
TENON_API int tenon_bundle_output_count(const TenonBundle *bundle);
TENON_API TenonStatus tenon_bundle_input(const TenonBundle *bundle, int binding, int input, TenonTensor *tensor);
TENON_API TenonStatus tenon_bundle_output(const TenonBundle *bundle, int binding, int output, TenonTensor *tensor);
TENON_API TenonStatus tenon_bundle_find_input(const TenonBundle *bundle, const char *name, int *input);
TENON_API TenonStatus tenon_bundle_find_output(const TenonBundle *bundle, const char *name, int *output);

/* The kernel calls of the first binding; -1 for an invalid handle, 0 for a linked bundle without `steps`. */
TENON_API int tenon_bundle_step_count(const TenonBundle *bundle);
TENON_API TenonStatus tenon_bundle_step(const TenonBundle *bundle, int step, TenonStep *description);

/* --------------------------------------------------------------------------------------------------------- engines */

typedef enum TenonCores { TENON_ALL_CORES = 0, TENON_BIG_CORES = 1, TENON_LITTLE_CORES = 2 } TenonCores;

typedef struct TenonEngineOptions {
  size_t struct_size;
  int32_t threads;            /* of a run, the calling one included; 0: 1 */
  int32_t cores;              /* TenonCores: which kind of cores, where they differ; excludes `processors` */
  const int32_t *processors;  /* numbers of the processors to run on; NULL: all */
  int32_t processor_count;
  int32_t binding;            /* the binding that is selected first */
  TenonEngine *share_activations; /* an engine, of any bundle, whose memory for intermediate results this one uses as
                                     well; their runs then wait for each other */
  const char *gpu; /* of a bundle that runs on a GPU: lines "cache: FOLDER", "queue_window: 8", ..., before those that it
                      was made with (docs/reference/gpu.md); NULL: none */
} TenonEngineOptions;

#define TENON_ENGINE_OPTIONS_INIT {sizeof(TenonEngineOptions), 0, 0, NULL, 0, 0, NULL, NULL}

/* Engines of one bundle share code and weights. */
TENON_API TenonStatus tenon_engine_create(TenonBundle *bundle, const TenonEngineOptions *options,
                                          TenonEngine **engine);

/* Waits for a run in progress. */
TENON_API TenonStatus tenon_engine_destroy(TenonEngine *engine);

/* The selected binding (-1: invalid handle, or the engine was compiled for other shapes), and selecting one: by its
   number, or by the shapes of all inputs, which lie one after another in `shapes`, input 0 first.  What inputs and
   outputs held is lost, except for states that both bindings have; buffers that were bound to them are so no longer, and
   pointers to their data have to be asked for again.

   For shapes that no binding has, tenon_engine_select_shapes compiles the model, or finds it in the cache, as when it was
   opened; then tenon_engine_input and tenon_engine_output describe the tensors, while the handle of the bundle describes
   what was opened.  After an error the engine is as before.  Bundles that were compiled ahead, encrypted models and those
   of a `transform` have only the shapes of their bindings (TENON_WRONG_SIZE). */
TENON_API int tenon_engine_binding(const TenonEngine *engine);
TENON_API TenonStatus tenon_engine_select(TenonEngine *engine, int binding);
TENON_API TenonStatus tenon_engine_select_shapes(TenonEngine *engine, const int64_t *shapes, size_t count);

/* Describe an input or output of the selected binding, also during a run; names are valid until another is selected. */
TENON_API TenonStatus tenon_engine_input(const TenonEngine *engine, int input, TenonTensor *tensor);
TENON_API TenonStatus tenon_engine_output(const TenonEngine *engine, int output, TenonTensor *tensor);

/* The memory of an input or output of the selected binding: write inputs and read outputs there to avoid copies.
   Valid until the engine is destroyed or another binding selected. */
TENON_API TenonStatus tenon_engine_input_data(TenonEngine *engine, int input, void **data);
TENON_API TenonStatus tenon_engine_output_data(TenonEngine *engine, int output, void **data);

/* Copy; `bytes` must be those of the tensor, or of its true shape (tenon_engine_set_input_shape). */
TENON_API TenonStatus tenon_engine_set_input(TenonEngine *engine, int input, const void *data, size_t bytes);
TENON_API TenonStatus tenon_engine_get_output(TenonEngine *engine, int output, void *data, size_t bytes);

/* Bind a buffer of the caller: every run copies an input from it before, and an output to it after.  NULL unbinds. */
TENON_API TenonStatus tenon_engine_bind_input(TenonEngine *engine, int input, const void *data, size_t bytes);
TENON_API TenonStatus tenon_engine_bind_output(TenonEngine *engine, int output, void *data, size_t bytes);

/* The shape of an output after a run, with the valid part of an axis of which only a part is valid. */
TENON_API TenonStatus tenon_engine_output_shape(TenonEngine *engine, int output, int64_t shape[TENON_MAX_RANK],
                                                int *rank);

/* The shape of an input of a network that takes inputs of changing size (TenonTensor.dynamic_axes), for the runs that
   follow: sets the inputs that hold its extents (TenonTensor.is_size), which are the largest at first.  To be called before
   tenon_engine_set_input, for every input that changes its size; all that have an extent of one name get the same one, or
   runs fail with TENON_WRONG_SIZE, as this call does for an extent that is out of its range.  Then tenon_engine_set_input
   and tenon_engine_get_output also take arrays of the true shape, without gaps, beside those of the largest one. */
TENON_API TenonStatus tenon_engine_set_input_shape(TenonEngine *engine, int input, const int64_t *shape, int rank);
TENON_API TenonStatus tenon_engine_input_shape(TenonEngine *engine, int input, int64_t shape[TENON_MAX_RANK], int *rank);

/* Runs the network once on what its inputs hold, by the calling thread and those of the engine, and returns when the
   outputs are there.  TENON_BUSY while another run goes on, TENON_WRONG_SIZE for extents of inputs that are out of their
   ranges, TENON_RUN_FAILED where a computed size or a loop is larger than the network was compiled for, or a device
   fails: outputs are then not valid. */
TENON_API TenonStatus tenon_engine_run(TenonEngine *engine);

/* Gives the states of the network their initial content, as when the engine was created: a new sequence begins.  Nothing
   is done if it has none. */
TENON_API TenonStatus tenon_engine_reset(TenonEngine *engine);

/* Starts a run on a thread of the engine.  `done`, if not NULL, is called on that thread at its end; it may use the
   engine's outputs and start the next run, and must not destroy the engine. */
typedef void TenonDone(TenonEngine *engine, TenonStatus status, void *context);
TENON_API TenonStatus tenon_engine_run_async(TenonEngine *engine, TenonDone *done, void *context);

/* Waits until the run that was started has ended, callback included, and returns its status.  TENON_TIMEOUT after so
   many milliseconds (negative: never; 0: asks only); the run goes on then.  TENON_WRONG_STATE if none was started. */
TENON_API TenonStatus tenon_engine_wait(TenonEngine *engine, int64_t milliseconds);

/* Gives the memory of intermediate results and the threads back to the system.  The next run takes them again. */
TENON_API TenonStatus tenon_engine_release_memory(TenonEngine *engine);

/* Runs once and stores the time in nanoseconds of each of tenon_bundle_step_count steps.  TENON_UNSUPPORTED if the
   bundle was compiled without --profile; the first binding must be selected. */
TENON_API TenonStatus tenon_engine_profile(TenonEngine *engine, uint64_t *nanoseconds, size_t count);

/* --------------------------------------------------------------------------------------------------------- GPUs */

/* The GPU, or other device, that a bundle which was compiled for one runs on: name, version of the interface and driver.
   "" if there is none, and tenon_last_error says why; the names of the devices that run parts of a bundle; NULL for an
   invalid handle, and for a bundle that runs on processors alone.  The text lives as long as the bundle. */
TENON_API const char *tenon_bundle_device(const TenonBundle *bundle);

/* Lets such a device load the kernels and weights of the selected binding now, instead of in the first run.
   TENON_UNSUPPORTED if there is no device, or another than the bundle was made for, TENON_OUT_OF_MEMORY, or
   TENON_RUN_FAILED with the driver's report.  TENON_OK, and nothing is done, if the bundle runs on processors. */
TENON_API TenonStatus tenon_engine_prepare(TenonEngine *engine);

/* ------------------------------------------------------------------------------------------------ language models */

/* A generator goes on with texts and answers messages, by a bundle of a language model (TENON_UNSUPPORTED for another).
   Tokens are those of `tenon run --prompt` and tenon.Generator with the same options.

       TenonGenerator *generator;
       TenonMessage message = {"user", "Why is the sky blue?"};
       if (tenon_generator_create(bundle, NULL, &generator) != TENON_OK) return fail(tenon_last_error());
       tenon_generator_chat(generator, &message, 1, NULL, print, NULL, NULL);

   One generator is used by one thread at a time; a call during another gives TENON_BUSY. */
typedef struct TenonGenerator TenonGenerator;

/* `role` is "system", "user" or "assistant"; both are UTF-8. */
typedef struct TenonMessage {
  const char *role, *content;
} TenonMessage;

/* How a text is generated; TENON_TEXT_OPTIONS_INIT first, then set fields.  A NULL pointer means the defaults.  Numbers
   below 0 stand for the values that the model's file recommends (the most probable token where it recommends none). */
typedef struct TenonTextOptions {
  size_t struct_size;
  int64_t max_tokens;     /* negative: until the text ends or the caches are full */
  double temperature;     /* logits are divided by it; 0: the most probable token */
  double top_p, min_p;    /* the probability of the tokens that stay, and the least one relative to the first */
  double repetition_penalty;
  double presence_penalty, frequency_penalty; /* from -100 to 100 */
  int64_t top_k;          /* tokens that stay; 0: all */
  int64_t penalty_window; /* tokens that penalties look at */
  int64_t seed;           /* makes choices repeatable; negative: another one each time */
  const char *const *stop; /* NULL-terminated: strings before which the text ends; or NULL */
  const char *grammar;     /* GBNF or a JSON schema, which the text follows; NULL: that of the bundle, if any; "": none */
} TenonTextOptions;

#define TENON_TEXT_OPTIONS_INIT {sizeof(TenonTextOptions), -1, -1, -1, -1, -1, 0, 0, -1, -1, -1, NULL, NULL}

/* Why a text ended: by itself or a string of `stop`, by max_tokens, because the caches are full, or by the program. */
typedef enum TenonFinish { TENON_STOP = 0, TENON_LENGTH = 1, TENON_CONTEXT = 2, TENON_CANCELLED = 3 } TenonFinish;

typedef struct TenonTextResult {
  int64_t tokens;        /* of the text */
  int64_t prompt_tokens; /* of all that was before it, of which `reused_tokens` were in the caches already */
  int64_t reused_tokens;
  TenonFinish finish;
  int32_t reserved_[9];
} TenonTextResult;

/* Gets the text as it is generated: whole characters in UTF-8, which no zero follows.  Anything but 0 ends the text.  It
   must not use the generator. */
typedef int TenonPiece(const char *text, size_t bytes, void *context);

/* `options` are as for tenon_engine_create. */
TENON_API TenonStatus tenon_generator_create(TenonBundle *bundle, const TenonEngineOptions *options,
                                             TenonGenerator **generator);
TENON_API TenonStatus tenon_generator_destroy(TenonGenerator *generator);

/* The most tokens of a prompt and its continuation; -1 for an invalid handle. */
TENON_API int64_t tenon_generator_context(const TenonGenerator *generator);

/* Go on with a prompt (UTF-8, ended by a zero), and answer the last of `count` messages: one of the system, if any, and
   then of user and assistant in turn, by the chat template that the model's file has (TENON_UNSUPPORTED if there is
   none, or it takes no message of the system).  What a text has in common with the one before it is not computed again.
   TENON_WRONG_SIZE for a prompt that is empty or leaves no room in the caches.  `result` may be NULL. */
TENON_API TenonStatus tenon_generator_generate(TenonGenerator *generator, const char *prompt,
                                               const TenonTextOptions *options, TenonPiece *piece, void *context,
                                               TenonTextResult *result);
TENON_API TenonStatus tenon_generator_chat(TenonGenerator *generator, const TenonMessage *messages, size_t count,
                                           const TenonTextOptions *options, TenonPiece *piece, void *context,
                                           TenonTextResult *result);

/* Several texts at the same time, by a bundle that was compiled with `--sequences N`: N texts at most, which a step goes on
   with by one token each.  Texts are added between steps, and what prompts begin with alike is computed once.

       TenonBatch *batch;
       size_t left = 1;
       if (tenon_batch_create(bundle, NULL, &batch) != TENON_OK) return fail(tenon_last_error());
       tenon_batch_generate(batch, "Once upon a time", NULL, print, NULL, first);
       tenon_batch_generate(batch, "Once there was", NULL, print, NULL, second);
       while (left > 0 && tenon_batch_step(batch, &left) == TENON_OK) continue;

   One batch is used by one thread at a time; functions that it calls must not use it (TENON_BUSY). */
typedef struct TenonBatch TenonBatch;

/* Called once when a text has ended, in a step, after its last piece. */
typedef void TenonTextDone(const TenonTextResult *result, void *context);

TENON_API TenonStatus tenon_batch_create(TenonBundle *bundle, const TenonEngineOptions *options, TenonBatch **batch);
TENON_API TenonStatus tenon_batch_destroy(TenonBatch *batch);

/* The texts at the same time, and the most tokens of a prompt and its continuation; -1 for an invalid handle. */
TENON_API int64_t tenon_batch_sequences(const TenonBatch *batch);
TENON_API int64_t tenon_batch_context(const TenonBatch *batch);

/* Add a text; arguments and errors are those of generators, and they are copied.  `piece` and `done`, which may be NULL, are
   called in steps, with `context`.  TENON_BUSY if there are as many texts as the bundle takes. */
TENON_API TenonStatus tenon_batch_generate(TenonBatch *batch, const char *prompt, const TenonTextOptions *options,
                                           TenonPiece *piece, TenonTextDone *done, void *context);
TENON_API TenonStatus tenon_batch_chat(TenonBatch *batch, const TenonMessage *messages, size_t count,
                                       const TenonTextOptions *options, TenonPiece *piece, TenonTextDone *done,
                                       void *context);

/* Run the network once: a token for each text that has begun, and a part of a prompt.  `*left` texts have not ended.  Where
   a grammar allows no token, its text ends, and the step fails with TENON_RUN_FAILED. */
TENON_API TenonStatus tenon_batch_step(TenonBatch *batch, size_t *left);

/* The tokens of a text, of which there are `*count`; `special`: with those that the model expects around every text.
   TENON_WRONG_SIZE if there are more than `room`. */
TENON_API TenonStatus tenon_generator_tokens(TenonGenerator *generator, const char *text, int special, uint32_t *tokens,
                                             size_t room, size_t *count);

/* The bytes of a token in a text, not always whole characters; none of special tokens.  They live as long as the generator;
   NULL for an invalid handle. */
TENON_API const char *tenon_generator_piece(TenonGenerator *generator, uint32_t token, size_t *bytes);

/* ------------------------------------------------------------------------------------------------- speech to text */

/* A recognizer writes down speech while it arrives, by two bundles of a model: the encoder, which was compiled with the
   outputs 'cross.*', and the decoder, with these as inputs (TENON_UNSUPPORTED for others).  Texts are those of `tenon run`
   and tenon.speech.  It takes no memory after it is created.

       TenonRecognizer *recognizer;
       TenonListenOptions how = TENON_LISTEN_OPTIONS_INIT;
       how.live = 1;
       if (tenon_recognizer_create(encoder, decoder, NULL, &recognizer) != TENON_OK) return fail(tenon_last_error());
       tenon_recognizer_begin(recognizer, &how, print, NULL);
       while ((count = microphone(samples)) > 0) tenon_recognizer_hear_pcm(recognizer, samples, count);
       tenon_recognizer_finish(recognizer);

   One recognizer is used by one thread at a time; a call during another gives TENON_BUSY. */
typedef struct TenonRecognizer TenonRecognizer;

/* Samples in a second. */
#define TENON_SPEECH_RATE 16000

/* How a sound is written down; TENON_LISTEN_OPTIONS_INIT first, then set fields.  A NULL pointer means the defaults. */
typedef struct TenonListenOptions {
  size_t struct_size;
  const char *language; /* "en"; NULL: the network says it for each piece, if it knows several */
  double step, pause;   /* live: seconds between texts that may change, and without a voice before a final one */
  int32_t live;         /* 1: texts end where the speaker pauses, and those so far are given in between; 0: they end where
                           the network takes no more samples */
  int32_t times;        /* 1: each part of a text has its own times, where the network knows them (not live) */
} TenonListenOptions;

#define TENON_LISTEN_OPTIONS_INIT {sizeof(TenonListenOptions), NULL, 1.0, 0.6, 0, 0}

/* The words from `start` to `end`, in seconds since the sound began. */
typedef struct TenonHeardText {
  double start, end;
  const char *text; /* UTF-8, which no zero follows */
  size_t bytes;
  int32_t final; /* 0: it may change with what follows */
  int32_t reserved_[9];
} TenonHeardText;

/* Gets a text, which lives until it returns.  Anything but 0 ends the call, with TENON_OK.  It must not use the
   recognizer. */
typedef int TenonHeard(const TenonHeardText *text, void *context);

/* `options` are as for tenon_engine_create.  The recognizer keeps both bundles open. */
TENON_API TenonStatus tenon_recognizer_create(TenonBundle *encoder, TenonBundle *decoder,
                                              const TenonEngineOptions *options, TenonRecognizer **recognizer);
TENON_API TenonStatus tenon_recognizer_destroy(TenonRecognizer *recognizer);

/* Begin with a sound; what was heard of another one is forgotten.  TENON_NOT_FOUND for a language that the network does not
   know. */
TENON_API TenonStatus tenon_recognizer_begin(TenonRecognizer *recognizer, const TenonListenOptions *options,
                                             TenonHeard *heard, void *context);

/* Take the next samples of the sound, any number at once: of -1 to 1, or of 16 bits.  TENON_WRONG_STATE before
   tenon_recognizer_begin. */
TENON_API TenonStatus tenon_recognizer_hear(TenonRecognizer *recognizer, const float *samples, size_t count);
TENON_API TenonStatus tenon_recognizer_hear_pcm(TenonRecognizer *recognizer, const int16_t *samples, size_t count);

/* Write down what is left where the sound ends. */
TENON_API TenonStatus tenon_recognizer_finish(TenonRecognizer *recognizer);

#ifdef __cplusplus
}
#endif

#endif /* TENON_H */
