/** The bytes of a file of this package, of a Response or of an address, as a Uint8Array. */
export async function bytesOf(source) {
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (typeof Response === "function" && source instanceof Response) return new Uint8Array(await source.arrayBuffer());
  const address = new URL(source, import.meta.url);
  if (address.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    return readFile(address);
  }
  const response = await fetch(address);
  if (!response.ok) throw new Error(`cannot load ${address}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}
