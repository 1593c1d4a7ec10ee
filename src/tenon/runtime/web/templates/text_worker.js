// Generates text in a worker thread: the module blocks it until the text ends.

const REASONS = { "-1": "the prompt is empty or too long", "-3": "there is not enough memory", "-6": "the grammar has a mistake, or allows no token", "-5": "the model takes no message of the system" };
const encoder = new TextEncoder();
let exported;

/** A piece of the text, as bytes: characters are put together on the page. */
function piece(place, length) {
  postMessage({ piece: new Uint8Array(exported.memory.buffer, place, length).slice() });
  return 0;
}

/** The place of a text in the module's memory, ended by a zero. */
function put(text) {
  const bytes = encoder.encode(text);
  const place = exported.allocate(bytes.length + 1);
  const memory = new Uint8Array(exported.memory.buffer, place, bytes.length + 1);
  memory.set(bytes);
  memory[bytes.length] = 0;
  return place;
}

/** The place of an array of messages. */
function putMessages(messages) {
  const places = messages.flatMap(({ role, content }) => [put(role), put(content)]);
  const place = exported.allocate(4 * places.length);
  new Uint32Array(exported.memory.buffer, place, places.length).set(places);
  return place;
}

/** Go on with a prompt, or answer messages: pieces are posted as they come, then the number of tokens and the time, or an
 * error. */
function generate({ prompt, messages, most, temperature, topK, topP, penalty, seed, grammar }) {
  exported.reset();
  exported.sampling(temperature, topK, topP, penalty, seed);
  exported.grammar(grammar ? put(grammar) : 0);
  const place = messages ? putMessages(messages) : put(prompt);
  const began = performance.now();
  const count = messages ? exported.chat(place, messages.length, most) : exported.generate(place, most);
  if (count < 0) postMessage({ error: REASONS[count] ?? "the network failed" });
  else postMessage({ count, time: performance.now() - began });
}

onmessage = async ({ data }) => {
  if (data.bytes) {
    const { instance } = await WebAssembly.instantiate(data.bytes, { page: { piece } });
    exported = instance.exports;
    if (data.chat && !exported.begin_chat()) postMessage({ error: REASONS["-3"] });
    else postMessage({ ready: true });
  } else {
    generate(data);
  }
};
