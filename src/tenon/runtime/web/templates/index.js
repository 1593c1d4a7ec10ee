import { Model, largest } from "./model.js";
import { description } from "./network.js";

/**
 * Load the network.  `source` is the module network.wasm: its bytes, a Response, or an address; by default the file
 * beside this one.
 */
export async function load(source = new URL("./network.wasm", import.meta.url)) {
  return Model.load(await bytesOf(source), description);
}

async function bytesOf(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  if (typeof Response === "function" && source instanceof Response) return source.arrayBuffer();
  const address = new URL(source, import.meta.url);
  if (address.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    return readFile(address);
  }
  const response = await fetch(address);
  if (!response.ok) throw new Error(`cannot load ${address}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

export { Model, largest };
