// Runs the network in a worker thread; model.js stands before this file.

const SHORTEST = 5; // ms of a measurement: clocks of browsers have a resolution of 0.1 ms
let model, warm = false;

/**
 * Run once before the first measurement: that run also compiles, and touches memory for the first time.  Not where it
 * would change states.
 */
async function warmUp(run) {
  if (!warm && !model.keepsStates) await run();
  warm = true;
}

/** The kind of code that the network runs by, and why it is not WebGPU; it changes when a device is lost. */
function deviceOf({ device, reason, adapter }) {
  return { device, reason, adapter };
}

const TASKS = {
  /** `weights` are those for WebGPU; null if the network was not compiled for it. */
  async load({ bytes, weights, description, device }) {
    const open = weights && (() => webgpu.create(weights));
    model = await Model.load(bytes, description, { device: "wasm", open });
    return TASKS.use({ device });
  },

  /** Choose the device; `refused` says why WebGPU, which was asked for, cannot be used. */
  async use({ device }) {
    warm = false;
    const refused = await model.use(device).then(() => "", (error) => error.message);
    return { refused, used: deviceOf(model) };
  },

  decode({ file }) {
    return model.decode(file);
  },

  async image({ image, limits }) {
    await warmUp(() => {
      model.takeImage(image);
      return model.runTaken();
    });
    const began = performance.now();
    model.takeImage(image);
    const taken = performance.now();
    const outputs = await model.runTaken();
    const done = performance.now();
    const times = { preprocessing: taken - began, network: done - taken }, used = deviceOf(model);
    if (!model.description.detects) return { outputs, detections: null, times, used };
    const detections = model.detections(limits);
    return { outputs, detections, times: { ...times, "post-processing": performance.now() - done }, used };
  },

  async arrays({ feeds }) {
    await warmUp(() => model.run(feeds));
    const began = performance.now();
    const outputs = await model.run(feeds);
    return { outputs, detections: null, times: { network: performance.now() - began }, used: deviceOf(model) };
  },

  /** A new sequence begins. */
  async reset() {
    await model.reset();
  },

  /** The time of a run on the last input: `rounds` measurements, each of as many runs as the clock needs. */
  async benchmark({ rounds }) {
    const time = async (runs) => {
      const began = performance.now();
      for (let i = 0; i < runs; i++) await model.runTaken();
      return performance.now() - began;
    };
    let runs = 1;
    while ((await time(runs)) < SHORTEST) runs *= 2;
    const times = [];
    for (let round = 0; round < rounds; round++) times.push((await time(runs)) / runs);
    if (model.keepsStates) await model.reset();
    times.sort((a, b) => a - b);
    return { least: times[0], median: times[rounds >> 1] };
  },
};

async function answer({ id, task, ...given }) {
  try {
    postMessage({ id, result: await TASKS[task](given) });
  } catch (error) {
    postMessage({ id, error: String(error.message ?? error) });
  }
}

let last = Promise.resolve();
/** One task after the other: they share the memory of inputs and outputs. */
onmessage = ({ data }) => {
  last = last.then(() => answer(data));
};
