import { bytesOf } from "./bytes.js";
import { largest } from "./largest.js";
import { Model } from "./model.js";
import { description } from "./network.js";
import { open } from "./webgpu.js";

/**
 * Load the network.  `source` is the module network.wasm: its bytes, a Response, or an address; by default the file
 * beside this one.  `device` is "auto", "webgpu" or "wasm" (see Model.use), `weights` the file webgpu.bin as `source` is.
 */
export async function load(source = new URL("./network.wasm", import.meta.url), { device = "auto", weights } = {}) {
  return Model.load(await bytesOf(source), description, { device, open: open && (() => open(weights)) });
}

export { Model, largest };
