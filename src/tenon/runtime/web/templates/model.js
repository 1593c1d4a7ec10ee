// The network in a WebAssembly module, or on a WebGPU device: inputs in, outputs, classes and detections out.

import { largest } from "./largest.js";

const ARRAYS = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array,
  i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, bool: Uint8Array,
};

/** The number that the bits of an IEEE 754 binary16 value stand for. */
function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}

export class Model {
  #gpu = null; #region = null; #open; #asked = "auto"; #last = Promise.resolve();

  /** `open` gives the network on a WebGPU device; null where the network was not compiled for one. */
  constructor(instance, description, open = null) {
    this.exports = instance.exports;
    this.description = description;
    this.name = description.name;
    this.inputs = description.inputs;
    this.outputs = description.outputs;
    this.keepsStates = this.inputs.some((tensor) => tensor.state);
    this.labels = description.labels;
    this.tensors = this.exports.tensors();
    this.device = "wasm";
    this.reason = "";
    this.adapter = "";
    this.#open = open;
    this.#fill();
  }

  /** A model from the bytes of its module, on a device: see `use`. */
  static async load(bytes, description, { device = "auto", open = null } = {}) {
    const { instance } = await WebAssembly.instantiate(bytes, {});
    const model = new Model(instance, description, open);
    await model.use(device);
    return model;
  }

  /**
   * Choose what the network runs on: "webgpu", "wasm", or "auto", the first of the targets that it was compiled for
   * which can be used.  Rejects if WebGPU is asked for and cannot be used; the model is then on WebAssembly.  The
   * memory of a device that was used before is released.
   */
  use(device) {
    return this.#next(async () => {
      if (!["auto", "webgpu", "wasm"].includes(device)) throw new TypeError(`no device '${device}': auto, webgpu, wasm`);
      this.#leave("");
      this.#asked = device;
      this.reason = this.#whyNot(device);
      if (this.reason && device === "webgpu") throw new Error(`WebGPU cannot be used: ${this.reason}`);
      if (!this.reason) await this.#enter();
    });
  }

  /**
   * Run on arrays by input name, which must not change before the result is there; arrays by output name.  States,
   * inputs that hold what the run before left in an output, need not be given.
   */
  run(feeds) {
    return this.#next(() => {
      const given = Object.entries(feeds);
      for (const [name, array] of given) this.#input(name).set(array);
      const missing = this.inputs.filter((tensor) => !tensor.state && !(tensor.name in feeds));
      if (missing.length) throw new TypeError(`no array for input '${missing[0].name}' of ${this.name}`);
      return this.runTaken();
    });
  }

  /** Give the states their initial content, as after loading: a new sequence begins. */
  reset() {
    return this.#next(() => this.#fill());
  }

  /**
   * Run on an image: { width, height, data } with red, green, blue and alpha bytes, as ImageData has them.  It is
   * resized and preprocessed as specified when compiling.
   */
  runImage(image) {
    return this.#next(() => {
      this.takeImage(image);
      return this.runTaken();
    });
  }

  /**
   * The pixels of an image file (JPEG, PNG, BMP, PGM, PPM), the same on every device; null for other formats.  Throws
   * a RangeError for damaged files.
   */
  decode(file) {
    const bytes = ArrayBuffer.isView(file) ? new Uint8Array(file.buffer, file.byteOffset, file.byteLength) : new Uint8Array(file);
    this.exports.reset();
    const place = this.exports.allocate(bytes.length);
    if (!place) throw new RangeError("not enough memory for the image");
    new Uint8Array(this.exports.memory.buffer, place, bytes.length).set(bytes);
    const problem = this.exports.decode(place, bytes.length);
    if (problem) {
      const text = this.#text(problem);
      if (text) throw new RangeError(text);
      return null;
    }
    const width = this.exports.decoded_width(), height = this.exports.decoded_height();
    const pixels = new Uint8ClampedArray(this.exports.memory.buffer, this.exports.decoded_pixels(), 4 * width * height);
    return { width, height, data: pixels.slice() };
  }

  /** The first half of runImage: resize and preprocess an image to the network's input. */
  takeImage(image) {
    const index = this.description.imageInput;
    if (index < 0) throw new TypeError(`${this.name} takes no image: use run`);
    const { width, height, data } = image;
    if (!(width > 0 && height > 0) || data.length !== 4 * width * height)
      throw new TypeError(`an image of ${width} x ${height} pixels needs ${4 * width * height} bytes, not ${data.length}`);
    this.exports.reset();
    const place = this.exports.allocate(data.length);
    if (!place) throw new RangeError("not enough memory for the image");
    new Uint8Array(this.exports.memory.buffer, place, data.length).set(data);
    const problem = this.exports.take_image(index, place, height, width);
    if (problem) throw new RangeError(this.#text(problem));
  }

  /** The second half of runImage: run on what takeImage took.  Calls must not overlap. */
  async runTaken() {
    if (!(this.#gpu && (await this.#ranOnDevice()))) {
      const status = this.exports.run();
      if (status) throw new Error(`${this.name} returned ${status}`);
    }
    return Object.fromEntries(this.outputs.map((tensor) => {
      const array = this.#place(tensor).slice();
      return [tensor.name, tensor.dtype === "f16" ? Float32Array.from(array, fromHalf) : array];
    }));
  }

  /** The objects in an image, best first: { class, label, score, box: [left, top, right, bottom] in pixels }. */
  detect(image, limits = {}) {
    return this.#next(async () => {
      this.takeImage(image);
      await this.runTaken();
      return this.detections(limits);
    });
  }

  /** The objects in the image of the last run. */
  detections({ threshold = 0.5, overlap = 0.45 } = {}) {
    if (!this.description.detects) throw new TypeError(`${this.name} is no detector`);
    const count = this.exports.detect(threshold, overlap);
    if (count < 0) throw new RangeError("not enough memory for the detections");
    const view = new DataView(this.exports.memory.buffer, this.exports.detections(), 40 * count);
    return Array.from({ length: count }, (_, i) => {
      const kind = view.getInt32(40 * i, true);
      return {
        class: kind,
        label: this.labels[kind] ?? String(kind),
        score: view.getFloat32(40 * i + 4, true),
        box: [0, 1, 2, 3].map((k) => view.getFloat64(40 * i + 8 + 8 * k, true)),
      };
    });
  }

  /** The `count` largest values of an output, largest first: { index, label, value }. */
  top(array, count = 5) {
    return largest(array, count).map((index) => ({ index, label: this.labels[index] ?? "", value: Number(array[index]) }));
  }

  #input(name) {
    const tensor = this.inputs.find((input) => input.name === name);
    if (!tensor) throw new TypeError(`${this.name} has no input '${name}': ${this.inputs.map((t) => t.name).join(", ")}`);
    const place = this.#place(tensor);
    return {
      set(array) {
        if (array.length !== place.length)
          throw new TypeError(`input '${name}' takes ${place.length} elements, not ${array.length}`);
        if (tensor.dtype === "f16" && !(array instanceof Uint16Array))
          throw new TypeError(`input '${name}' takes 16-bit floats: give their bits as a Uint16Array`);
        place.set(array);
      },
    };
  }

  /** Write the initial content of all states. */
  #fill() {
    for (const tensor of this.inputs.filter((input) => input.state)) {
      const bytes = this.#bytes(tensor).fill(0), { initial } = tensor;
      for (let at = 0; initial.length && at < bytes.length; at += initial.length) bytes.set(initial, at);
    }
  }

  /** A task after those before it: runs share the memory of inputs and outputs. */
  #next(task) {
    const result = this.#last.then(task);
    this.#last = result.catch(() => {});
    return result;
  }

  /** Why the choice of a device leaves WebGPU out; "" if it does not. */
  #whyNot(device) {
    const { webgpu } = this.description;
    if (device === "wasm") return "WebAssembly was asked for";
    if (!webgpu || !this.#open) return webgpu?.refused || "the network was compiled for WebAssembly alone";
    return webgpu.refused || (device === "auto" && !webgpu.first ? "WebAssembly is the first target of the network" : "");
  }

  async #enter() {
    try {
      this.#gpu = await this.#open();
      this.device = "webgpu";
      this.adapter = this.#gpu.adapter;
      this.#region = new Uint8Array(this.description.webgpu.size);
    } catch (error) {
      this.#leave(error.message);
      if (this.#asked === "webgpu") throw new Error(`WebGPU cannot be used: ${error.message}`);
    }
  }

  #leave(reason) {
    this.#gpu?.destroy();
    this.#gpu = this.#region = null;
    this.device = "wasm";
    this.adapter = "";
    this.reason = reason;
  }

  /** Run on the device, which gives the same answers.  False if it fails, and WebAssembly takes over. */
  async #ranOnDevice() {
    const { inputs, outputs } = this.description.webgpu;
    this.inputs.forEach((tensor, i) => this.#region.set(this.#bytes(tensor), inputs[i]));
    try {
      await this.#gpu.run(this.#region);
    } catch (error) {
      if (this.#asked === "webgpu") throw error;
      this.#leave(error.message);
      return false;
    }
    this.outputs.forEach((tensor, i) => {
      const bytes = this.#bytes(tensor);
      bytes.set(this.#region.subarray(outputs[i], outputs[i] + bytes.length));
    });
    return true;
  }

  #bytes(tensor) {
    const { buffer, byteOffset, byteLength } = this.#place(tensor);
    return new Uint8Array(buffer, byteOffset, byteLength);
  }

  #place(tensor) {
    const length = tensor.shape.reduce((product, extent) => product * extent, 1);
    return new ARRAYS[tensor.dtype](this.exports.memory.buffer, this.tensors + tensor.offset, length);
  }

  #text(address) {
    const bytes = new Uint8Array(this.exports.memory.buffer, address);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }
}
