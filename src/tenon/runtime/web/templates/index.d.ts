/** Arrays of the network's inputs, row-major; f16 as the bits of the numbers. */
export interface Inputs {
@INPUTS@
}

/** Arrays of the network's outputs, row-major; f16 is converted to Float32Array. */
export interface Outputs {
@OUTPUTS@
}

/** Red, green, blue and alpha bytes, row by row; ImageData is one. */
export interface Pixels {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8ClampedArray | Uint8Array;
}

export interface Detection {
  class: number;
  /** The name of the class, or its number. */
  label: string;
  score: number;
  /** Left, top, right, bottom in pixels of the image. */
  box: [number, number, number, number];
}

export interface Best {
  index: number;
  label: string;
  value: number;
}

export interface Limits {
  /** Minimum score of a detection; 0.5. */
  threshold?: number;
  /** Intersection over union above which the worse of two boxes of a class is removed; 0.45. */
  overlap?: number;
}

export interface Tensor {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
  /** A quantised element stands for scale * (element - zeroPoint). */
  readonly scale: number | null;
  readonly zeroPoint: number | null;
  /** The output that an input holds after a run, if it is a state; "" for others, and missing for outputs. */
  readonly state?: string;
}

/** The kind of code that a network runs by; "auto" is the first of its targets that can be used. */
export type Device = "auto" | "webgpu" | "wasm";

export interface LoadOptions {
  /** "auto" by default. */
  device?: Device;
  /** The bytes or address of webgpu.bin; by default the file in this package. */
  weights?: Source;
}

/** Bytes, or where they are. */
export type Source = ArrayBuffer | ArrayBufferView | Response | URL | string;

export class Model {
  private constructor();
  readonly name: string;
  /** The kind of code that the network runs by now. */
  readonly device: "webgpu" | "wasm";
  /** Why WebGPU is not used; "" if it is. */
  readonly reason: string;
  /** The name of the WebGPU device; "" on WebAssembly. */
  readonly adapter: string;
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  /** Whether inputs hold what the run before left in an output. */
  readonly keepsStates: boolean;
  readonly labels: readonly string[];
  /**
   * Choose what the network runs on.  Rejects if WebGPU is asked for and cannot be used; with "auto" WebAssembly takes
   * over, also when the device is lost later.
   */
  use(device: Device): Promise<void>;
  /** Run on arrays by input name, which must not change before the promise is settled; states need not be given. */
  run(feeds: { [Name in keyof Inputs]: Inputs[Name] | readonly number[] }): Promise<Outputs>;
  /** Give the states their initial content, as after loading: a new sequence begins. */
  reset(): Promise<void>;
  /** Run on an image, which is resized and preprocessed as specified when compiling. */
  runImage(image: Pixels): Promise<Outputs>;
  /** The pixels of a JPEG, PNG, BMP, PGM or PPM file, the same on every device; null for other formats. */
  decode(file: ArrayBuffer | ArrayBufferView): Pixels | null;
  /** The objects in an image, best first; rejects for networks that are no detectors. */
  detect(image: Pixels, limits?: Limits): Promise<Detection[]>;
  /** The objects in the image of the last run. */
  detections(limits?: Limits): Detection[];
  /** The largest values of an output, largest first; 5 by default. */
  top(array: Outputs[keyof Outputs], count?: number): Best[];
}

/** Load the network from the bytes or address of network.wasm; by default from the file in this package. */
export function load(source?: Source, options?: LoadOptions): Promise<Model>;

/** Positions of the `count` largest elements, largest first. */
export function largest(array: ArrayLike<number | bigint>, count: number): number[];
