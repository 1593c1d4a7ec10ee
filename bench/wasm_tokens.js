#!/usr/bin/env node
// Tokens per second of language models compiled for WebAssembly, in Node.js, repetitions interleaved.
//
//     python bench/language_models.py --write q4_0 --size 135m model.gguf
//     tenon compile model.gguf --target wasm32 -o plain
//     tenon compile model.gguf --target wasm32-relaxed -o relaxed
//     node bench/wasm_tokens.js plain relaxed      (before version 21: node --experimental-wasm-relaxed-simd ...)
//
// A folder's first entry point adds one token.  Prints tokens in a second of wall time, the best of the repetitions.

const fs = require("fs");
const path = require("path");

const REPEAT = 12, TOKENS = 8, PAGE = 65536, ALIGN = 64;

function aligned(place) {
  return Math.ceil(place / ALIGN) * ALIGN;
}

/** A function that adds one token by the bundle of a folder. */
function opened(folder) {
  const name = fs.readdirSync(folder).find((file) => file.endsWith(".wasm")).slice(0, -5);
  const header = fs.readFileSync(path.join(folder, `${name}.h`), "utf8");
  const [constant, mutable, activations] = ["CONSTANT", "MUTABLE", "ACTIVATIONS"].map((kind) => Number(header.match(new RegExp(`_${kind}_MEM_SIZE (\\d+)`))[1]));
  const module = new WebAssembly.Module(fs.readFileSync(path.join(folder, `${name}.wasm`)));
  const exported = new WebAssembly.Instance(module).exports;
  const weights = aligned(exported.__heap_base.value);
  const states = aligned(weights + constant);
  const work = aligned(states + mutable);
  exported.memory.grow(Math.ceil((work + activations - exported.memory.buffer.byteLength) / PAGE));
  new Uint8Array(exported.memory.buffer).set(fs.readFileSync(path.join(folder, `${name}.weights.bin`)), weights);
  const length = Number(header.match(/_length (\d+)/)[1]);
  new DataView(exported.memory.buffer).setBigInt64(states + length, 1n, true);
  return () => {
    const status = exported[name](weights, states, work);
    if (status) throw new Error(`${folder}: status ${status}`);
  };
}

const models = process.argv.slice(2).map((folder) => ({ folder, step: opened(folder), best: Infinity }));
for (let turn = 0; turn < REPEAT; turn++) {
  for (const model of models) {
    const began = process.hrtime.bigint();
    for (let i = 0; i < TOKENS; i++) model.step();
    model.best = Math.min(model.best, Number(process.hrtime.bigint() - began) / TOKENS);
  }
}
for (const { folder, best } of models) console.log(`${folder}: ${(1e9 / best).toFixed(1)} tokens/s`);
