// Runs the network in a worker thread; model.js stands before this file.

const SHORTEST = 5; // ms of a measurement: clocks of browsers have a resolution of 0.1 ms
let model, warm = false;

/** Run once before the first measurement: that run also compiles, and touches memory for the first time. */
function warmUp(run) {
  if (!warm) run();
  warm = true;
}

const TASKS = {
  async load({ bytes, description }) {
    const began = performance.now();
    model = await Model.load(bytes, description);
    return { milliseconds: performance.now() - began };
  },

  decode({ file }) {
    return model.decode(file);
  },

  image({ image, limits }) {
    warmUp(() => {
      model.takeImage(image);
      model.runTaken();
    });
    const began = performance.now();
    model.takeImage(image);
    const taken = performance.now();
    const outputs = model.runTaken();
    const done = performance.now();
    const times = { preprocessing: taken - began, network: done - taken };
    if (!model.description.detects) return { outputs, detections: null, times };
    const detections = model.detections(limits);
    return { outputs, detections, times: { ...times, "post-processing": performance.now() - done } };
  },

  arrays({ feeds }) {
    warmUp(() => model.run(feeds));
    const began = performance.now();
    const outputs = model.run(feeds);
    return { outputs, detections: null, times: { network: performance.now() - began } };
  },

  /** The time of a run on the last input: `rounds` measurements, each of as many runs as the clock needs. */
  benchmark({ rounds }) {
    const time = (runs) => {
      const began = performance.now();
      for (let i = 0; i < runs; i++) model.runTaken();
      return performance.now() - began;
    };
    let runs = 1;
    while (time(runs) < SHORTEST) runs *= 2;
    const times = Array.from({ length: rounds }, () => time(runs) / runs).sort((a, b) => a - b);
    return { least: times[0], median: times[rounds >> 1] };
  },
};

onmessage = async ({ data: { id, task, ...given } }) => {
  try {
    postMessage({ id, result: await TASKS[task](given) });
  } catch (error) {
    postMessage({ id, error: String(error.message ?? error) });
  }
};
