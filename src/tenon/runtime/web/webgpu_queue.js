// Runs networks by WebGPU: one compute pass, recorded in each run, which ends where a branch waits for its condition.  The module in which this text stands has KERNELS
// (WGSL) and NETWORKS (tables of each network) before it.

const GROUPS = 65535, SLOT = 256, MOST = 32;
const whole = (bytes) => Math.max(4, Math.ceil(bytes / 4) * 4);

/**
 * The launches of a network, { entry, groups, first }, and the items of a run, the loops around them unrolled: numbers
 * of launches, and branches { region, offset, bodies } with items of their own.
 */
function launches(network) {
  const made = [];
  const moved = (start, steps, counters) => steps.reduce((at, step, i) => at + step * counters[i], start);
  const visit = (items, counters) => items.flatMap((item) => {
    if (typeof item === "number") {
      const { entry, groups, operands } = network.steps[item];
      return [made.push({ entry, groups, first: operands.map(([start, steps]) => moved(start, steps, counters)) }) - 1];
    }
    if (item.bodies) {
      const { region, offset, steps, bodies } = item;
      return [{ region, offset: moved(offset, steps, counters), bodies: bodies.map((body) => visit(body, counters)) }];
    }
    return Array.from({ length: item.count }, (_, i) => visit(item.body, [...counters, i])).flat();
  });
  return { items: visit(network.items, []), made };
}

/** The device of the browser, with buffers as large as the network needs, and its name; throws an Error if there is none. */
async function open(sizes) {
  const adapter = await globalThis.navigator?.gpu?.requestAdapter();
  if (!adapter) throw new Error("there is no WebGPU adapter: this browser or machine has none");
  const size = Math.max(...sizes.map(whole));
  for (const limit of ["maxStorageBufferBindingSize", "maxBufferSize"]) {
    if (size > adapter.limits[limit])
      throw new Error(`the network needs a buffer of ${size} bytes, and the WebGPU adapter has at most ${adapter.limits[limit]}`);
  }
  const device = await adapter.requestDevice({ requiredLimits: {
    maxStorageBufferBindingSize: adapter.limits.maxStorageBufferBindingSize,
    maxBufferSize: adapter.limits.maxBufferSize,
    maxComputeWorkgroupStorageSize: adapter.limits.maxComputeWorkgroupStorageSize,
  } });
  const { vendor = "", architecture = "", description = "" } = adapter.info ?? {};
  return { device, adapter: description || `${vendor} ${architecture}`.trim() };
}

class Network {
  #device; #regions; #bound; #pipelines; #launches; #items; #network; #results; #choice; #lost = "";

  static async open(name, weights) {
    const made = new Network();
    try {
      await made.#create(NETWORKS[name], weights);
    } catch (error) {
      made.destroy();
      throw error;
    }
    return made;
  }

  async #create(network, weights) {
    this.#network = network;
    const { device, adapter } = await open(network.sizes);
    this.#device = device;
    this.adapter = adapter;
    const bytes = typeof weights === "function" ? await weights() : weights;
    device.lost.then((about) => { this.#lost = about.message || about.reason; });
    device.pushErrorScope("validation");
    device.pushErrorScope("out-of-memory");
    ({ made: this.#launches, items: this.#items } = launches(network));
    this.#allocate(device, bytes);
    await this.#compile(device);
    for (const what of ["memory of the device", "kernels"]) {
      const error = await device.popErrorScope();
      if (error) throw new Error(`WebGPU: ${what}: ${error.message}`);
    }
  }

  #allocate(device, weights) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    this.#regions = this.#network.sizes.map((size) => device.createBuffer({ size: whole(size), usage }));
    if (weights.length) this.#write(this.#regions[0], 0, weights);
    const size = whole(this.#network.sizes[1]);
    const read = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    this.#results = device.createBuffer({ size, usage: read });
    this.#choice = device.createBuffer({ size: 4, usage: read });
  }

  /** Writes of whole words: what is left of the last one is zero. */
  #write(buffer, offset, bytes) {
    const words = new Uint8Array(whole(bytes.length));
    words.set(bytes);
    this.#device.queue.writeBuffer(buffer, offset, words);
  }

  async #compile(device) {
    const kinds = ["read-only-storage", "storage", "storage", "uniform"];
    const layout = device.createBindGroupLayout({ entries: kinds.map((type, binding) => ({
      binding, visibility: GPUShaderStage.COMPUTE, buffer: { type, hasDynamicOffset: type === "uniform" },
    })) });
    const module = device.createShaderModule({ code: KERNELS });
    const wrong = (await module.getCompilationInfo()).messages.find((message) => message.type === "error");
    if (wrong) throw new Error(`WebGPU refuses the kernels: line ${wrong.lineNum}: ${wrong.message}`);
    const shared = device.createPipelineLayout({ bindGroupLayouts: [layout] });
    const used = [...new Set(this.#launches.map((launch) => launch.entry))];
    const made = await Promise.all(used.map((entry) =>
      device.createComputePipelineAsync({ layout: shared, compute: { module, entryPoint: `run_${entry}` } })));
    this.#pipelines = new Map(used.map((entry, i) => [entry, made[i]]));
    const table = new Int32Array(Math.max(1, this.#launches.length) * SLOT / 4);
    this.#launches.forEach(({ first }, i) => table.set(first, i * SLOT / 4));
    const operands = device.createBuffer({ size: table.byteLength, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    device.queue.writeBuffer(operands, 0, table);
    const resources = [...this.#regions.map((buffer) => ({ buffer })), { buffer: operands, size: 4 * MOST }];
    this.#bound = device.createBindGroup({ layout, entries: resources.map((resource, binding) => ({ binding, resource })) });
  }

  /** Runs on the mutable region, a Uint8Array that holds the inputs, and leaves the outputs in it. */
  async run(tensors) {
    if (this.#lost) throw new Error(`the WebGPU device was lost: ${this.#lost}`);
    const [, region] = this.#regions;
    for (const [offset, size] of this.#network.inputs) this.#write(region, offset, tensors.subarray(offset, offset + size));
    const commands = await this.#record(this.#items, this.#device.createCommandEncoder());
    const held = await this.#read(commands, region, 0, this.#results);
    for (const [offset, size] of this.#network.outputs) tensors.set(held.subarray(offset, offset + size), offset);
  }

  /** Record items behind `commands`; returns the encoder of what comes next. */
  async #record(items, commands) {
    let pass = null;
    for (const item of items) {
      if (typeof item === "number") {
        const { entry, groups } = this.#launches[item], columns = Math.min(groups, GROUPS);
        pass ??= commands.beginComputePass();
        pass.setPipeline(this.#pipelines.get(entry));
        pass.setBindGroup(0, this.#bound, [item * SLOT]);
        pass.dispatchWorkgroups(columns, Math.ceil(groups / columns));
        continue;
      }
      pass?.end();
      pass = null;
      const word = await this.#read(commands, this.#regions[item.region], item.offset & ~3, this.#choice);
      const body = item.bodies[Math.min(word[item.offset & 3], item.bodies.length - 1)];
      commands = await this.#record(body, this.#device.createCommandEncoder());
    }
    pass?.end();
    return commands;
  }

  /** Run what is recorded, and read as many bytes of a region as `held` has. */
  async #read(commands, region, offset, held) {
    commands.copyBufferToBuffer(region, offset, held, 0, held.size);
    this.#device.queue.submit([commands.finish()]);
    await held.mapAsync(GPUMapMode.READ).catch((error) => {
      throw new Error(`the WebGPU device was lost: ${this.#lost || error.message}`);
    });
    const bytes = new Uint8Array(held.getMappedRange()).slice();
    held.unmap();
    return bytes;
  }

  /** Gives the states in the mutable region their initial content: before the first run, and for a new sequence. */
  reset(tensors) {
    for (const [offset, size, initial] of this.#network.states) {
      const bytes = tensors.subarray(offset, offset + size).fill(0);
      for (let at = 0; initial.length && at < size; at += initial.length) bytes.set(initial, at);
    }
  }

  /** Releases what the device holds. */
  destroy() {
    this.#device?.destroy();
  }
}

/**
 * A network on the device, from its weights: a Uint8Array, or a function that gives it or a promise of it, called only if
 * there is a device.  `run`, `reset` and `destroy` it; `adapter` names the device.  Throws an Error without a device.
 */
export function create(weights, name = Object.keys(NETWORKS)[0]) {
  return Network.open(name, weights);
}
