import { bytesOf } from "./bytes.js";

/** The network on a WebGPU device.  The weights are loaded only if there is one. */
export async function open(weights = new URL("./webgpu.bin", import.meta.url)) {
  const { create } = await import("./kernels.js");
  return create(() => bytesOf(weights));
}
