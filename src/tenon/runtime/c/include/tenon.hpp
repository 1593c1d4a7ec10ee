/* libtenon for C++17: handles that release themselves, and errors as exceptions.  Needs tenon.h and libtenon.

       tenon::Engine engine{tenon::Bundle("net.tenon")};
       engine.input("image").set(pixels);             // any contiguous container of the right element type
       engine.run();
       std::vector<float> scores = engine.output("scores").get<float>(); */

#ifndef TENON_HPP
#define TENON_HPP

#ifdef _MSVC_LANG
#define TENON_CPLUSPLUS _MSVC_LANG
#else
#define TENON_CPLUSPLUS __cplusplus
#endif
#if TENON_CPLUSPLUS < 201703L
#error "tenon.hpp needs C++17 (-std=c++17, /std:c++17); tenon.h has the same functions for C and older C++"
#endif
#undef TENON_CPLUSPLUS

#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tenon.h"

namespace tenon {

/* The status that a function of tenon.h returned, with the text of tenon_last_error. */
class Error : public std::runtime_error {
 public:
  explicit Error(TenonStatus status) : std::runtime_error(tenon_last_error()), status_(status) {}
  Error(TenonStatus status, const std::string &text) : std::runtime_error(text), status_(status) {}
  TenonStatus status() const noexcept { return status_; }

 private:
  TenonStatus status_;
};

inline void check(TenonStatus status) {
  if (status != TENON_OK) throw Error(status);
}

/* The TenonType of a C++ type; TENON_OTHER_TYPE of one without. */
template <class T>
constexpr TenonType type_of() {
  if (std::is_same_v<T, float>) return TENON_F32;
  if (std::is_same_v<T, double>) return TENON_F64;
  if (std::is_same_v<T, bool>) return TENON_BOOL;
  if (!std::is_integral_v<T>) return TENON_OTHER_TYPE;
  const bool is_signed = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1: return is_signed ? TENON_I8 : TENON_U8;
    case 2: return is_signed ? TENON_I16 : TENON_U16;
    case 4: return is_signed ? TENON_I32 : TENON_U32;
    default: return is_signed ? TENON_I64 : TENON_U64;
  }
}

/* How to open: fields of TenonOpenOptions, whose lists this keeps.  `key` and `public_key` are empty or have
   TENON_KEY_BYTES and TENON_PUBLIC_KEY_BYTES bytes. */
struct OpenOptions {
  std::string target, model_name, weights, key_file;
  std::vector<std::uint8_t> key, public_key;
  std::function<bool(std::uint8_t *data, std::size_t bytes)> transform; /* false: an error */
  std::vector<std::string> shapes, arguments;
  int threads = 0, compile_seconds = 0;
  std::int64_t minimum_version = 0;
  bool skip_checksums = false, never_compile = false;
};

class Bundle {
 public:
  explicit Bundle(const std::string &path, const OpenOptions &options = {}) {
    TenonBundle *handle = nullptr;
    with(options, [&](const TenonOpenOptions *given) { check(tenon_bundle_open(path.c_str(), given, &handle)); });
    handle_.reset(handle);
  }
  /* The data must stay as it is while the bundle and its engines exist. */
  Bundle(const void *data, std::size_t bytes, const OpenOptions &options = {}) {
    TenonBundle *handle = nullptr;
    with(options, [&](const TenonOpenOptions *given) { check(tenon_bundle_open_memory(data, bytes, given, &handle)); });
    handle_.reset(handle);
  }
  explicit Bundle(const TenonLinked &linked) {
    TenonBundle *handle = nullptr;
    check(tenon_bundle_from_program(&linked, &handle));
    handle_.reset(handle);
  }

  TenonBundle *handle() const noexcept { return handle_.get(); }
  std::string name() const { return tenon_bundle_name(handle()); }
  std::string target() const { return tenon_bundle_target(handle()); }
  /* The GPU that it runs on, "" if there is none, or if it runs on processors. */
  std::string device() const {
    const char *text = tenon_bundle_device(handle());
    return text == nullptr ? "" : text;
  }
  int max_threads() const { return tenon_bundle_max_threads(handle()); }
  int bindings() const { return tenon_bundle_binding_count(handle()); }
  TenonMemory memory() const {
    TenonMemory memory;
    check(tenon_bundle_memory(handle(), &memory));
    return memory;
  }
  std::vector<TenonTensor> inputs(int binding = 0) const {
    return tensors(tenon_bundle_input_count(handle()), binding, tenon_bundle_input);
  }
  std::vector<TenonTensor> outputs(int binding = 0) const {
    return tensors(tenon_bundle_output_count(handle()), binding, tenon_bundle_output);
  }
  std::vector<TenonStep> steps() const {
    std::vector<TenonStep> all(static_cast<std::size_t>(tenon_bundle_step_count(handle())));
    for (std::size_t i = 0; i < all.size(); i++) check(tenon_bundle_step(handle(), static_cast<int>(i), &all[i]));
    return all;
  }

 private:
  struct Close {
    void operator()(TenonBundle *bundle) const noexcept { tenon_bundle_close(bundle); }
  };
  using Describe = TenonStatus (*)(const TenonBundle *, int, int, TenonTensor *);

  std::vector<TenonTensor> tensors(int count, int binding, Describe describe) const {
    std::vector<TenonTensor> all(static_cast<std::size_t>(count));
    for (int i = 0; i < count; i++) check(describe(handle(), binding, i, &all[static_cast<std::size_t>(i)]));
    return all;
  }
  static std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> all;
    for (const std::string &text : texts) all.push_back(text.c_str());
    all.push_back(nullptr);
    return all;
  }
  static const char *text(const std::string &value) { return value.empty() ? nullptr : value.c_str(); }
  template <class Open>
  static void with(const OpenOptions &options, Open open) {
    const std::vector<const char *> shapes = pointers(options.shapes), arguments = pointers(options.arguments);
    TenonOpenOptions given = TENON_OPEN_OPTIONS_INIT;
    given.skip_checksums = options.skip_checksums;
    given.never_compile = options.never_compile;
    given.target = text(options.target);
    given.model_name = text(options.model_name);
    given.weights = text(options.weights);
    given.shapes = shapes.data();
    given.arguments = arguments.data();
    given.threads = options.threads;
    given.compile_seconds = options.compile_seconds;
    if (!options.key.empty() && options.key.size() != TENON_KEY_BYTES)
      throw Error(TENON_WRONG_KEY, "a key has " + std::to_string(TENON_KEY_BYTES) + " bytes");
    if (!options.public_key.empty() && options.public_key.size() != TENON_PUBLIC_KEY_BYTES)
      throw Error(TENON_INVALID_ARGUMENT, "a public key has " + std::to_string(TENON_PUBLIC_KEY_BYTES) + " bytes");
    given.public_key = options.public_key.empty() ? nullptr : options.public_key.data();
    given.minimum_version = options.minimum_version;
    given.key = options.key.empty() ? nullptr : options.key.data();
    given.key_file = text(options.key_file);
    auto transform = options.transform;
    if (transform) {
      given.transform_context = &transform;
      given.transform = [](void *context, std::uint8_t *data, std::size_t bytes) {
        return (*static_cast<decltype(options.transform) *>(context))(data, bytes) ? 0 : 1;
      };
    }
    open(&given);
  }

  std::unique_ptr<TenonBundle, Close> handle_;
};

class Engine;

/* An input or output of an engine, as the selected binding has it. */
class Tensor {
 public:
  const TenonTensor &about() const noexcept { return about_; }
  std::vector<std::int64_t> shape() const { return {about_.shape, about_.shape + about_.rank}; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(about_.bytes); }
  /* The engine's own memory, to be written and read without a copy. */
  void *data() const {
    void *data = nullptr;
    check((is_output_ ? tenon_engine_output_data : tenon_engine_input_data)(engine_, number_, &data));
    return data;
  }
  template <class T>
  T *data() const {
    require<T>();
    return static_cast<T *>(data());
  }
  /* The extents that runs have from now on, of an input of changing size; before its content. */
  void resize(const std::vector<std::int64_t> &shape) const {
    check(tenon_engine_set_input_shape(engine_, number_, shape.data(), static_cast<int>(shape.size())));
  }
  template <class Container>
  void set(const Container &values) const {
    require<std::decay_t<decltype(*values.data())>>();
    check(tenon_engine_set_input(engine_, number_, values.data(), values.size() * sizeof *values.data()));
  }
  template <class T>
  std::vector<T> get() const {
    require<T>();
    std::size_t count = 1;
    for (const std::int64_t extent : valid_shape()) count *= static_cast<std::size_t>(extent);
    std::vector<T> values(about_.string || type_of<T>() != about_.type ? bytes() / sizeof(T) : count);
    check(tenon_engine_get_output(engine_, number_, values.data(), values.size() * sizeof(T)));
    return values;
  }
  /* Every run copies from or to this memory, which must be there until then; nullptr unbinds. */
  void bind(void *memory, std::size_t size) const {
    check(is_output_ ? tenon_engine_bind_output(engine_, number_, memory, size)
                     : tenon_engine_bind_input(engine_, number_, memory, size));
  }
  /* The extents of a run: those that an input was given, and after it the valid part of an output whose size depends on
     inputs or data. */
  std::vector<std::int64_t> valid_shape() const {
    std::int64_t extents[TENON_MAX_RANK];
    int rank = 0;
    check((is_output_ ? tenon_engine_output_shape : tenon_engine_input_shape)(engine_, number_, extents, &rank));
    return {extents, extents + rank};
  }

 private:
  friend class Engine;
  Tensor(TenonEngine *engine, int number, bool is_output, const TenonTensor &about)
      : engine_(engine), number_(number), is_output_(is_output), about_(about) {}
  template <class T>
  void require() const {
    if (type_of<T>() == TENON_OTHER_TYPE || type_of<T>() == about_.type) return;
    throw Error(TENON_INVALID_ARGUMENT, std::string(about_.name) + " holds elements of type " + about_.type_name);
  }

  TenonEngine *engine_;
  int number_;
  bool is_output_;
  TenonTensor about_;
};

struct EngineOptions {
  int threads = 1;
  TenonCores cores = TENON_ALL_CORES;
  std::vector<std::int32_t> processors;
  int binding = 0;
  const Engine *share_activations = nullptr;
  std::string gpu; /* lines "cache: FOLDER", ... */
};

class Engine {
 public:
  explicit Engine(const Bundle &bundle, const EngineOptions &options = {}) : bundle_(bundle.handle()) {
    TenonEngineOptions given = TENON_ENGINE_OPTIONS_INIT;
    given.threads = options.threads;
    given.cores = options.cores;
    given.processors = options.processors.empty() ? nullptr : options.processors.data();
    given.processor_count = static_cast<std::int32_t>(options.processors.size());
    given.binding = options.binding;
    given.share_activations = options.share_activations != nullptr ? options.share_activations->handle() : nullptr;
    given.gpu = options.gpu.empty() ? nullptr : options.gpu.c_str();
    TenonEngine *handle = nullptr;
    check(tenon_engine_create(bundle.handle(), &given, &handle));
    handle_.reset(handle);
  }
  /* Keeps the bundle. */
  explicit Engine(Bundle &&bundle, const EngineOptions &options = {}) : Engine(bundle, options) {
    kept_ = std::make_unique<Bundle>(std::move(bundle));
  }

  TenonEngine *handle() const noexcept { return handle_.get(); }
  int binding() const { return tenon_engine_binding(handle()); }
  void select(int binding) { check(tenon_engine_select(handle(), binding)); }
  /* The shapes of all inputs, in order. */
  void select(const std::vector<std::vector<std::int64_t>> &shapes) {
    std::vector<std::int64_t> all;
    for (const auto &shape : shapes) all.insert(all.end(), shape.begin(), shape.end());
    check(tenon_engine_select_shapes(handle(), all.data(), all.size()));
  }
  Tensor input(int number = 0) const { return tensor(number, false); }
  Tensor output(int number = 0) const { return tensor(number, true); }
  Tensor input(const std::string &name) const { return input(found(name, tenon_bundle_find_input)); }
  Tensor output(const std::string &name) const { return output(found(name, tenon_bundle_find_output)); }
  void run() { check(tenon_engine_run(handle())); }
  /* Gives the states their initial content. */
  void reset() { check(tenon_engine_reset(handle())); }
  /* `done` is called on the engine's thread with the status of the run. */
  void run_async(std::function<void(TenonStatus)> done = {}) {
    auto *kept = new std::function<void(TenonStatus)>(std::move(done));
    const TenonStatus status = tenon_engine_run_async(handle(), finished, kept);
    if (status != TENON_OK) delete kept;
    check(status);
  }
  /* Whether the run has ended, after at most so many milliseconds (negative: any number); throws if it failed. */
  bool wait(std::int64_t milliseconds = -1) {
    const TenonStatus status = tenon_engine_wait(handle(), milliseconds);
    if (status == TENON_TIMEOUT) return false;
    check(status);
    return true;
  }
  /* Lets a GPU load kernels and weights now. */
  void prepare() { check(tenon_engine_prepare(handle())); }
  void release_memory() { check(tenon_engine_release_memory(handle())); }
  /* Nanoseconds of each step of a run. */
  std::vector<std::uint64_t> profile() {
    std::vector<std::uint64_t> times(static_cast<std::size_t>(tenon_bundle_step_count(bundle_)));
    check(tenon_engine_profile(handle(), times.data(), times.size()));
    return times;
  }

 private:
  struct Destroy {
    void operator()(TenonEngine *engine) const noexcept { tenon_engine_destroy(engine); }
  };
  static void finished(TenonEngine *, TenonStatus status, void *context) {
    std::unique_ptr<std::function<void(TenonStatus)>> done(static_cast<std::function<void(TenonStatus)> *>(context));
    if (*done) (*done)(status);
  }
  Tensor tensor(int number, bool is_output) const {
    TenonTensor about;
    check((is_output ? tenon_engine_output : tenon_engine_input)(handle(), number, &about));
    return Tensor(handle(), number, is_output, about);
  }
  int found(const std::string &name, TenonStatus (*find)(const TenonBundle *, const char *, int *)) const {
    int number = 0;
    check(find(bundle_, name.c_str(), &number));
    return number;
  }

  TenonBundle *bundle_; /* of the program, or kept_ */
  std::unique_ptr<Bundle> kept_;
  std::unique_ptr<TenonEngine, Destroy> handle_;
};

/* How a text is generated: fields of TenonTextOptions; numbers below 0 are those that the model's file recommends. */
struct TextOptions {
  std::int64_t max_tokens = -1, top_k = -1, penalty_window = -1, seed = -1;
  double temperature = -1, top_p = -1, min_p = -1, repetition_penalty = -1;
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::string> stop;
  std::optional<std::string> grammar; /* in GBNF, or a JSON schema; none: that of the bundle, if any */
};

/* The options as C takes them; they refer to the others. */
struct GivenTextOptions {
  explicit GivenTextOptions(const TextOptions &from) {
    for (const std::string &text : from.stop) stop.push_back(text.c_str());
    stop.push_back(nullptr);
    options.max_tokens = from.max_tokens;
    options.temperature = from.temperature;
    options.top_p = from.top_p;
    options.min_p = from.min_p;
    options.repetition_penalty = from.repetition_penalty;
    options.presence_penalty = from.presence_penalty;
    options.frequency_penalty = from.frequency_penalty;
    options.top_k = from.top_k;
    options.penalty_window = from.penalty_window;
    options.seed = from.seed;
    options.stop = stop.data();
    options.grammar = from.grammar ? from.grammar->c_str() : nullptr;
  }
  std::vector<const char *> stop;
  TenonTextOptions options = TENON_TEXT_OPTIONS_INIT;
};

struct Message {
  std::string role, content;
};

/* A generated text, and numbers of tokens. */
struct Text {
  std::string text;
  TenonTextResult about;
};

/* Goes on with texts and answers messages, by a bundle of a language model. */
class Generator {
 public:
  /* Gets the text as it is generated; false ends it. */
  using Piece = std::function<bool(std::string_view)>;

  explicit Generator(const Bundle &bundle, int threads = 1) {
    TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
    options.threads = threads;
    TenonGenerator *handle = nullptr;
    check(tenon_generator_create(bundle.handle(), &options, &handle));
    handle_.reset(handle);
  }
  /* Keeps the bundle. */
  explicit Generator(Bundle &&bundle, int threads = 1) : Generator(bundle, threads) {
    kept_ = std::make_unique<Bundle>(std::move(bundle));
  }

  TenonGenerator *handle() const noexcept { return handle_.get(); }
  std::int64_t context() const { return tenon_generator_context(handle()); }
  Text generate(const std::string &prompt, const TextOptions &options = {}, Piece piece = {}) {
    return collected(options, std::move(piece), [&](auto *given, auto *function, void *state, auto *result) {
      return tenon_generator_generate(handle(), prompt.c_str(), given, function, state, result);
    });
  }
  Text chat(const std::vector<Message> &messages, const TextOptions &options = {}, Piece piece = {}) {
    std::vector<TenonMessage> list;
    for (const Message &message : messages) list.push_back({message.role.c_str(), message.content.c_str()});
    return collected(options, std::move(piece), [&](auto *given, auto *function, void *state, auto *result) {
      return tenon_generator_chat(handle(), list.data(), list.size(), given, function, state, result);
    });
  }
  std::vector<std::uint32_t> tokens(const std::string &text, bool special = true) {
    std::vector<std::uint32_t> all(text.size() + 64);
    std::size_t count = 0;
    check(tenon_generator_tokens(handle(), text.c_str(), special, all.data(), all.size(), &count));
    all.resize(count);
    return all;
  }

 private:
  struct Destroy {
    void operator()(TenonGenerator *generator) const noexcept { tenon_generator_destroy(generator); }
  };
  struct State {
    std::string text;
    Piece piece;
    std::exception_ptr error;
  };
  /* An exception of the program's function ends the text, and is thrown when the library has returned. */
  static int take(const char *text, std::size_t bytes, void *context) {
    State &state = *static_cast<State *>(context);
    try {
      state.text.append(text, bytes);
      return state.piece && !state.piece(std::string_view(text, bytes)) ? 1 : 0;
    } catch (...) {
      state.error = std::current_exception();
      return 1;
    }
  }
  template <class Call>
  static Text collected(const TextOptions &options, Piece piece, Call call) {
    const GivenTextOptions given(options);
    State state{{}, std::move(piece), nullptr};
    TenonTextResult result;
    check(call(&given.options, take, &state, &result));
    if (state.error) std::rethrow_exception(state.error);
    return {std::move(state.text), result};
  }

  std::unique_ptr<Bundle> kept_;
  std::unique_ptr<TenonGenerator, Destroy> handle_;
};

/* Goes on with several texts at the same time, by a bundle that was compiled for so many sequences. */
class Batch {
 public:
  using Piece = Generator::Piece;
  /* Gets the whole text when it has ended. */
  using Done = std::function<void(const Text &)>;

  explicit Batch(const Bundle &bundle, int threads = 1) {
    TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
    options.threads = threads;
    TenonBatch *handle = nullptr;
    check(tenon_batch_create(bundle.handle(), &options, &handle));
    handle_.reset(handle);
  }

  TenonBatch *handle() const noexcept { return handle_.get(); }
  std::int64_t sequences() const { return tenon_batch_sequences(handle()); }
  std::int64_t context() const { return tenon_batch_context(handle()); }
  void generate(const std::string &prompt, const TextOptions &options = {}, Done done = {}, Piece piece = {}) {
    const GivenTextOptions given(options);
    add(std::move(piece), std::move(done), [&](State *state) {
      return tenon_batch_generate(handle(), prompt.c_str(), &given.options, take, end, state);
    });
  }
  void chat(const std::vector<Message> &messages, const TextOptions &options = {}, Done done = {}, Piece piece = {}) {
    std::vector<TenonMessage> list;
    for (const Message &message : messages) list.push_back({message.role.c_str(), message.content.c_str()});
    const GivenTextOptions given(options);
    add(std::move(piece), std::move(done), [&](State *state) {
      return tenon_batch_chat(handle(), list.data(), list.size(), &given.options, take, end, state);
    });
  }
  /* A token of each text; the number of texts that have not ended.  Throws what a function of the program's threw. */
  std::size_t step() {
    std::size_t left = 0;
    const TenonStatus status = tenon_batch_step(handle(), &left);
    texts_.remove_if([](const State &state) { return state.ended; });
    if (*error_) std::rethrow_exception(std::exchange(*error_, nullptr));
    check(status);
    return left;
  }

 private:
  struct Destroy {
    void operator()(TenonBatch *batch) const noexcept { tenon_batch_destroy(batch); }
  };
  struct State {
    std::string text;
    Piece piece;
    Done done;
    std::exception_ptr *error;
    bool ended = false;
  };
  static int take(const char *text, std::size_t bytes, void *context) {
    State &state = *static_cast<State *>(context);
    try {
      state.text.append(text, bytes);
      return state.piece && !state.piece(std::string_view(text, bytes)) ? 1 : 0;
    } catch (...) {
      *state.error = std::current_exception();
      return 1;
    }
  }
  static void end(const TenonTextResult *result, void *context) {
    State &state = *static_cast<State *>(context);
    state.ended = true;
    try {
      if (state.done) state.done({std::move(state.text), *result});
    } catch (...) {
      *state.error = std::current_exception();
    }
  }
  template <class Call>
  void add(Piece piece, Done done, Call call) {
    texts_.push_back({{}, std::move(piece), std::move(done), error_.get()});
    const TenonStatus status = call(&texts_.back());
    if (status != TENON_OK) texts_.pop_back();
    check(status);
  }

  std::list<State> texts_; /* before the batch, which refers to them */
  std::unique_ptr<std::exception_ptr> error_ = std::make_unique<std::exception_ptr>();
  std::unique_ptr<TenonBatch, Destroy> handle_;
};

/* How a sound is written down. */
struct Listening {
  std::string language; /* "": the network says it for each piece */
  bool live = false, times = false;
  double step = 1.0, pause = 0.6;
};

/* The words from `start` to `end`, in seconds. */
struct Heard {
  double start, end;
  std::string text;
  bool final;
};

/* Writes down speech while it arrives, by the encoder and the decoder of a model. */
class Recognizer {
 public:
  /* Gets what is said; false ends the call. */
  using Function = std::function<bool(const Heard &)>;

  Recognizer(const Bundle &encoder, const Bundle &decoder, int threads = 1) {
    TenonEngineOptions options = TENON_ENGINE_OPTIONS_INIT;
    options.threads = threads;
    TenonRecognizer *handle = nullptr;
    check(tenon_recognizer_create(encoder.handle(), decoder.handle(), &options, &handle));
    handle_.reset(handle);
  }

  TenonRecognizer *handle() const noexcept { return handle_.get(); }
  void begin(const Listening &how, Function function) {
    TenonListenOptions options = TENON_LISTEN_OPTIONS_INIT;
    options.language = how.language.empty() ? nullptr : how.language.c_str();
    options.live = how.live;
    options.times = how.times;
    options.step = how.step;
    options.pause = how.pause;
    state_ = std::make_unique<State>(State{std::move(function), nullptr});
    check(tenon_recognizer_begin(handle(), &options, take, state_.get()));
  }
  void hear(const float *samples, std::size_t count) { done(tenon_recognizer_hear(handle(), samples, count)); }
  void hear(const std::int16_t *samples, std::size_t count) { done(tenon_recognizer_hear_pcm(handle(), samples, count)); }
  void finish() { done(tenon_recognizer_finish(handle())); }

 private:
  struct Destroy {
    void operator()(TenonRecognizer *recognizer) const noexcept { tenon_recognizer_destroy(recognizer); }
  };
  struct State {
    Function function;
    std::exception_ptr error;
  };
  /* An exception of the program's function ends the call, and is thrown when the library has returned. */
  static int take(const TenonHeardText *text, void *context) {
    State &state = *static_cast<State *>(context);
    try {
      return state.function({text->start, text->end, std::string(text->text, text->bytes), text->final != 0}) ? 0 : 1;
    } catch (...) {
      state.error = std::current_exception();
      return 1;
    }
  }
  void done(TenonStatus status) {
    check(status);
    if (state_ && state_->error) std::rethrow_exception(std::exchange(state_->error, nullptr));
  }

  std::unique_ptr<State> state_;
  std::unique_ptr<TenonRecognizer, Destroy> handle_;
};

}  // namespace tenon

#endif  // TENON_HPP
