const $ = (id) => document.getElementById(id);
const about = JSON.parse($("description").textContent);
const source = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
const module = Uint8Array.from(atob($("wasm").textContent.trim()), (character) => character.charCodeAt(0));
let worker, decoder, running = false;
let messages = []; // of the conversation so far

function say(text, error = false) {
  $("message").textContent = text;
  $("message").classList.toggle("error", error);
}

function show(state) {
  running = state;
  $("go").disabled = running;
  $("stop").disabled = !running;
}

function take({ data }) {
  if (data.ready) {
    say("");
    show(false);
    document.body.dataset.ready = "1";
  } else if (data.piece) {
    $("text").append(decoder.decode(data.piece, { stream: true }));
  } else if (data.error) {
    say(data.error, true);
    end();
  } else {
    $("text").append(decoder.decode());
    if ($("chat").checked) keepAnswer();
    const rate = data.count / Math.max(data.time / 1000, 1e-6);
    $("times").textContent = `${data.count} tokens, ${rate.toFixed(1)} per second`;
    end();
  }
}

function end() {
  show(false);
  document.body.dataset.runs = Number(document.body.dataset.runs ?? 0) + 1;
}

/** Start the worker; the module lies in it, so that a text is stopped by ending it. */
function start() {
  worker = new Worker(source);
  worker.onmessage = take;
  worker.onerror = (event) => say(event.message, true);
  worker.postMessage({ bytes: module, chat: about.chat });
}

/** A message among those of the conversation. */
function add(role, content) {
  messages.push({ role, content });
  if (role === "system") return;
  const paragraph = document.createElement("p");
  paragraph.className = role;
  paragraph.textContent = content;
  $("talk").append(paragraph);
}

function keepAnswer() {
  add("assistant", $("text").textContent);
  $("text").textContent = "";
  $("prompt").value = "";
}

function forget() {
  messages = [];
  $("talk").textContent = $("text").textContent = $("times").textContent = "";
}

/** Show what belongs to conversations, or to texts that are gone on with. */
function choose() {
  const chat = $("chat").checked;
  $("about-system").hidden = $("again").hidden = !chat;
  document.querySelector("label[for=prompt]").textContent = chat ? "Message" : "Text to go on with";
  $("go").textContent = chat ? "Send" : "Go on";
  forget();
}

function number(id, otherwise) {
  const value = Number($(id).value);
  return $(id).value === "" || !Number.isFinite(value) ? otherwise : value;
}

$("form").onsubmit = (event) => {
  event.preventDefault();
  if (running) return;
  show(true);
  say("");
  decoder = new TextDecoder();
  $("text").textContent = "";
  $("times").textContent = "";
  if ($("chat").checked) {
    if (messages.length % 2 !== (messages[0]?.role === "system" ? 1 : 0)) messages.pop(); // was not answered
    if (messages.length === 0 && $("system").value !== "") add("system", $("system").value);
    add("user", $("prompt").value);
  }
  worker.postMessage({
    prompt: $("prompt").value,
    messages: $("chat").checked ? messages : null,
    most: number("most", -1),
    temperature: number("temperature", 0),
    topK: number("topk", 0),
    topP: number("topp", 1),
    penalty: number("penalty", 1),
    grammar: $("grammar").value.trim(),
    seed: number("seed", (Math.random() * 2 ** 32) >>> 0),
  });
};

$("stop").onclick = () => {
  worker.terminate();
  if ($("chat").checked) keepAnswer();
  end();
  show(true);
  start();
};

$("about").textContent = `${about.model || about.name}: ${about.vocabulary} tokens, context ${about.context}`;
$("chat").onchange = $("plain").onchange = choose;
$("again").onclick = forget;
$("kinds").hidden = !about.chat;
if (about.chat) {
  $("chat").checked = true;
  choose();
}
show(true);
$("stop").disabled = true;
start();
