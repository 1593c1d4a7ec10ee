// Generates text in a worker thread: the module blocks it until the text ends.

const REASONS = { "-1": "the prompt is empty or too long", "-3": "there is not enough memory" };
const encoder = new TextEncoder();
let exported;

/** A piece of the text, as bytes: characters are put together on the page. */
function piece(place, length) {
  postMessage({ piece: new Uint8Array(exported.memory.buffer, place, length).slice() });
  return 0;
}

/** Go on with a prompt: pieces are posted as they come, then the number of tokens and the time, or an error. */
function generate({ prompt, most, temperature, topK, topP, penalty, seed }) {
  const bytes = encoder.encode(prompt);
  exported.reset();
  const place = exported.allocate(bytes.length + 1);
  const memory = new Uint8Array(exported.memory.buffer, place, bytes.length + 1);
  memory.set(bytes);
  memory[bytes.length] = 0;
  const began = performance.now();
  const count = exported.generate(place, most, temperature, topK, topP, penalty, seed);
  if (count < 0) postMessage({ error: REASONS[count] ?? "the network failed" });
  else postMessage({ count, time: performance.now() - began });
}

onmessage = async ({ data }) => {
  if (data.bytes) {
    const { instance } = await WebAssembly.instantiate(data.bytes, { page: { piece } });
    exported = instance.exports;
    postMessage({ ready: true });
  } else {
    generate(data);
  }
};
