const byId = (id) => document.getElementById(id);
const description = JSON.parse(byId("description").textContent);
const input = description.inputs[description.imageInput];
const given = description.inputs.filter((tensor) => !tensor.state); // states keep what the run before left
const TABS = { draw: "Draw", file: "Image file", camera: "Camera", numbers: "Numbers" };
const DRAWABLE = 64; // pixels: grey inputs up to this size can be drawn
const COLOURS = ["#e6194b", "#0082c8", "#f58231", "#3cb44b", "#911eb4", "#008080", "#aa6e28", "#808000"];

// ------------------------------------------------------------------------------------------------- the worker
const waiting = new Map();
let asked = 0;
const worker = new Worker(URL.createObjectURL(new Blob([byId("worker").textContent], { type: "text/javascript" })));
worker.onmessage = ({ data: { id, result, error } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error === undefined) resolve(result);
  else reject(new Error(error));
};
worker.onerror = (event) => fail(new Error(event.message));

function ask(task, given, transfer = []) {
  return new Promise((resolve, reject) => {
    waiting.set(++asked, { resolve, reject });
    worker.postMessage({ id: asked, task, ...given }, transfer);
  });
}

function decoded(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

// ----------------------------------------------------------------------------------------------------- results
let last = null; // the image of the last run

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function say(text, failed = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("error", failed);
}

/** Say what went wrong; an earlier answer is not the one of what was given now. */
function fail(error) {
  say(error.message, true);
  byId("shown").hidden = true;
  byId("answer").replaceChildren();
  byId("times").textContent = "";
  last = window.tenonResult = null;
  document.body.dataset.state = "failed";
}

function short(number) {
  return Number.isInteger(number) ? String(number) : number.toPrecision(4);
}

function row(cells, className = "") {
  const made = element("tr", "", className);
  made.append(...cells);
  return made;
}

/** The largest values of an output as a table with bars. */
function table(tensor, array) {
  const made = element("table"), labelled = array.length === tensor.shape.at(-1);
  const { scale, zeroPoint } = tensor, quantised = scale !== null && scale !== undefined;
  const real = (i) => (quantised ? scale * (Number(array[i]) - zeroPoint) : Number(array[i]));
  made.append(element("caption", `${tensor.name}  ${tensor.dtype}[${tensor.shape}]`));
  const best = largest(array, 5), low = Math.min(0, real(best.at(-1))), high = Math.max(1e-30, real(best[0]));
  best.forEach((i, rank) => {
    const bar = element("i"), value = element("td", "", "value");
    bar.style.width = `${(100 * (real(i) - low)) / (high - low) || 0}%`;
    value.append(bar, element("span", short(real(i)) + (quantised ? ` (${array[i]})` : "")));
    const name = (labelled && description.labels[i]) || String(i);
    made.append(row([element("td", name), value], rank ? "" : "best"));
  });
  return made;
}

function boxesTable(found) {
  const made = element("table");
  made.append(element("caption", `${found.length} found`));
  if (found.length) made.append(row(["class", "score", "left", "top", "right", "bottom"].map((text, i) => element("th", text, i ? "number" : ""))));
  for (const { label, score, box } of found)
    made.append(row([element("td", label), ...[score.toFixed(3), ...box.map((edge) => edge.toFixed(0))].map((text) => element("td", text, "number"))]));
  return made;
}

/** The image of the last run with the boxes on it. */
function draw(image, found) {
  const canvas = byId("shown"), context = canvas.getContext("2d");
  canvas.hidden = false;
  canvas.width = image.width;
  canvas.height = image.height;
  context.putImageData(image, 0, 0);
  const unit = Math.max(image.width, image.height) / 400;
  context.font = `600 ${11 * unit}px system-ui, sans-serif`;
  context.lineWidth = 2 * unit;
  for (const { class: kind, label, score, box: [left, upper, right, lower] } of found ?? []) {
    context.strokeStyle = context.fillStyle = COLOURS[kind % COLOURS.length] ?? COLOURS[0];
    context.strokeRect(left, upper, right - left, lower - upper);
    const text = `${label} ${score.toFixed(2)}`, width = context.measureText(text).width + 6 * unit;
    const y = Math.max(upper, 15 * unit);
    context.fillRect(left, y - 15 * unit, width, 15 * unit);
    context.fillStyle = "#fff";
    context.fillText(text, left + 3 * unit, y - 4 * unit);
  }
}

function show({ outputs, detections, times, used }, image) {
  say("");
  showDevice(used);
  if (image && (detections || !live)) draw(image, detections);
  else byId("shown").hidden = true;
  byId("answer").replaceChildren(...(detections ? [boxesTable(detections)] : description.outputs.map((tensor) => table(tensor, outputs[tensor.name]))));
  byId("times").textContent = Object.entries(times).map(([what, ms]) => `${what} ${ms.toFixed(1)} ms`).join(", ");
  byId("benchmark").disabled = false;
  window.tenonResult = { outputs, detections, times };
  document.body.dataset.runs = Number(document.body.dataset.runs ?? 0) + 1;
  document.body.dataset.state = "ready";
}

// ------------------------------------------------------------------------------------------------------ images
let busy = false, live = false; // live: from the camera or the drawing area, which show it

/** Run on an ImageData; with `skip`, not while another run is under way. */
async function runImage(image, { isLive = false, skip = false } = {}) {
  if (busy && skip) return;
  busy = true;
  last = image;
  live = isLive;
  document.body.dataset.state = "running";
  const { width, height } = image, data = image.data.slice();
  try {
    show(await ask("image", { image: { width, height, data }, limits: { threshold: Number(byId("threshold").value) } }, [data.buffer]), image);
  } catch (error) {
    fail(error);
  }
  busy = false;
}

function pixelsOf(source, width, height) {
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(source, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

async function runFile(file) {
  if (!file) return;
  say(`Reading ${file.name}…`);
  document.body.dataset.state = "running";
  try {
    await runImage((await decodedHere(file)) ?? (await decodedByBrowser(file)));
  } catch {
    fail(new Error(`${file.name} is not an image that can be read: choose a PNG or JPEG file.`));
  }
}

/** The pixels by the decoder in the module: those that the network sees elsewhere.  Null for what it does not read. */
async function decodedHere(file) {
  const bytes = await file.arrayBuffer();
  const pixels = await ask("decode", { file: bytes }, [bytes]).catch(() => null);
  return pixels && new ImageData(pixels.data, pixels.width, pixels.height);
}

async function decodedByBrowser(file) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  return pixelsOf(bitmap, bitmap.width, bitmap.height);
}

function prepareFile() {
  const drop = byId("drop");
  byId("file").addEventListener("change", (event) => runFile(event.target.files[0]));
  for (const kind of ["dragover", "dragleave", "drop"])
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
    });
  document.addEventListener("drop", (event) => {
    select("file");
    runFile(event.dataTransfer.files[0]);
  });
}

// ------------------------------------------------------------------------------------------------------ camera
let stream = null;

async function startCamera() {
  const video = byId("video");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 640 }, facingMode: "environment" } });
  } catch (error) {
    return fail(new Error(`The camera cannot be used: ${error.message}. Allow it in the browser's settings, or choose an image file.`));
  }
  video.srcObject = stream;
  await video.play();
  byId("camera").textContent = "Stop the camera";
  const next = async () => {
    if (!stream) return;
    if (video.videoWidth) await runImage(pixelsOf(video, video.videoWidth, video.videoHeight), { isLive: true, skip: true });
    requestAnimationFrame(next);
  };
  return next();
}

function stopCamera() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  byId("camera").textContent = "Start the camera";
}

// ----------------------------------------------------------------------------------------------------- drawing
function clearPad() {
  const context = byId("pad").getContext("2d");
  context.fillStyle = byId("invert").checked ? "#fff" : "#000";
  context.fillRect(0, 0, 280, 280);
}

function prepareDrawing() {
  const pad = byId("pad"), context = pad.getContext("2d", { willReadFrequently: true });
  let from = null;
  const at = (event) => {
    const area = pad.getBoundingClientRect();
    return [((event.clientX - area.left) * 280) / area.width, ((event.clientY - area.top) * 280) / area.height];
  };
  const line = (to) => {
    context.strokeStyle = byId("invert").checked ? "#000" : "#fff";
    context.lineWidth = 24;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
    from = to;
  };
  pad.addEventListener("pointerdown", (event) => {
    pad.setPointerCapture?.(event.pointerId);
    from = at(event);
    line(from);
  });
  pad.addEventListener("pointermove", (event) => {
    if (!from) return;
    line(at(event));
    runImage(context.getImageData(0, 0, 280, 280), { isLive: true, skip: true });
  });
  for (const kind of ["pointerup", "pointercancel"])
    pad.addEventListener(kind, () => {
      if (from) runImage(context.getImageData(0, 0, 280, 280), { isLive: true });
      from = null;
    });
  byId("clear").addEventListener("click", clearPad);
  byId("invert").addEventListener("change", clearPad);
  clearPad();
}

// ----------------------------------------------------------------------------------------------------- numbers
const lengthOf = (tensor) => tensor.shape.reduce((product, extent) => product * extent, 1);

function prepareNumbers() {
  given.forEach((tensor, i) => {
    const label = element("label", `${tensor.name}  ${tensor.dtype}[${tensor.shape}]: ${lengthOf(tensor)} numbers`), area = element("textarea");
    area.id = `numbers-${i}`;
    area.spellcheck = false;
    label.append(area);
    byId("arrays").append(label);
  });
  byId("random").addEventListener("click", () => {
    given.forEach((tensor, i) => {
      const whole = !tensor.dtype.startsWith("f");
      byId(`numbers-${i}`).value = Array.from({ length: lengthOf(tensor) }, () => (whole ? Math.floor(2 * Math.random()) : Math.random().toFixed(4))).join(", ");
    });
    runNumbers();
  });
  byId("run").addEventListener("click", runNumbers);
  byId("reset").hidden = given.length === description.inputs.length;
  byId("reset").addEventListener("click", () => ask("reset", {}).catch(fail));
}

async function runNumbers() {
  try {
    const feeds = Object.fromEntries(given.map((tensor, i) => {
      const parts = byId(`numbers-${i}`).value.split(/[\s,;]+/).filter(Boolean);
      if (parts.length !== lengthOf(tensor)) throw new Error(`${tensor.name} takes ${lengthOf(tensor)} numbers, not ${parts.length}.`);
      return [tensor.name, tensor.dtype.endsWith("64") && tensor.dtype !== "f64" ? parts.map(BigInt) : parts.map(Number)];
    }));
    show(await ask("arrays", { feeds }), null);
  } catch (error) {
    fail(error);
  }
}

// ------------------------------------------------------------------------------------------------------ device
const DEVICES = { auto: "Automatic", webgpu: "WebGPU", wasm: "WebAssembly" };

/** The kind of code that the network runs by, and why it is not WebGPU. */
function showDevice({ device, reason, adapter }) {
  document.body.dataset.device = device;
  const about = device === "webgpu" ? adapter : reason;
  byId("device-used").textContent = DEVICES[device] + (about ? `: ${about}` : "");
}

/** Show the answer to a choice of the device; false if it was refused, and the network is on WebAssembly. */
function took({ refused, used }) {
  showDevice(used);
  if (refused) fail(new Error(refused));
  return !refused;
}

function prepareDevice() {
  const asked = new URLSearchParams(location.search).get("device");
  byId("device-line").hidden = !description.webgpu;
  byId("device").append(...Object.entries(DEVICES).map(([value, text]) => Object.assign(element("option", text), { value })));
  byId("device").value = asked in DEVICES ? asked : "auto";
  byId("device").addEventListener("change", async ({ target }) => {
    document.body.dataset.state = "running";
    if (!took(await ask("use", { device: target.value }))) return;
    if (last && !stream) return runImage(last, { isLive: live });
    document.body.dataset.state = "ready";
  });
}

// -------------------------------------------------------------------------------------------------------- page
function select(name) {
  for (const tab of byId("tabs").children) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (name !== "camera") stopCamera();
}

function prepareTabs(names) {
  for (const name of names) {
    const tab = element("button", TABS[name]);
    tab.type = "button";
    tab.id = `tab-${name}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", `panel-${name}`);
    byId(`panel-${name}`).setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => select(name));
    byId("tabs").append(tab);
  }
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const chosen = names[(names.findIndex((name) => byId(`tab-${name}`).tabIndex === 0) + step + names.length) % names.length];
    select(chosen);
    byId(`tab-${chosen}`).focus();
  });
  select(names[0]);
}

function prepareFacts() {
  const list = (tensors) => tensors.map(({ name, dtype, shape }) => `${name} ${dtype}[${shape}]`).join(", ");
  const megabytes = (bytes) => `${(bytes / 1e6).toFixed(2)} MB`;
  const facts = {
    "Model file": description.model,
    Inputs: list(description.inputs),
    Outputs: list(description.outputs),
    Weights: megabytes(description.weights),
    "Working memory": megabytes(description.memory),
    "Compiled by": `Tenon ${description.version} for ${description.target}`,
  };
  for (const [what, text] of Object.entries(facts)) if (text) byId("facts").append(row([element("th", what), element("td", text)]));
}

async function start() {
  byId("about").textContent = "Runs in this page, on this device: nothing is sent anywhere.";
  prepareFacts();
  prepareDevice();
  const drawable = input && input.image.channels === 1 && Math.max(input.image.height, input.image.width) <= DRAWABLE;
  prepareTabs(input ? [...(drawable ? ["draw"] : []), "file", "camera"] : ["numbers"]);
  if (input) prepareFile();
  else prepareNumbers();
  if (drawable) prepareDrawing();
  byId("camera").addEventListener("click", () => (stream ? stopCamera() : startCamera()));
  byId("limits").hidden = !description.detects;
  byId("threshold").addEventListener("input", (event) => {
    byId("threshold-value").textContent = event.target.value;
    if (last && !stream) runImage(last, { isLive: live });
  });
  byId("benchmark").addEventListener("click", async () => {
    byId("benchmarked").textContent = "…";
    const { least, median } = await ask("benchmark", { rounds: 20 });
    byId("benchmarked").textContent = `median ${short(median)} ms, least ${short(least)} ms`;
  });
  try {
    const bytes = decoded(byId("wasm").textContent.trim()), device = byId("device").value;
    const weights = description.webgpu?.module ? new Uint8Array(decoded(byId("webgpu").textContent.trim())) : null;
    if (!took(await ask("load", { bytes, weights, description, device }, weights ? [bytes, weights.buffer] : [bytes]))) return;
    say(input ? (drawable ? "Draw, or choose an image." : "Choose an image.") : "Enter numbers.");
    document.body.dataset.state = "ready";
  } catch (error) {
    fail(new Error(`The network cannot be loaded: ${error.message}. A browser of 2021 or newer with WebAssembly SIMD is needed.`));
  }
}

start();
