/* Runs a network on a Vulkan device by one command buffer, which is recorded once; where a run computes which steps run,
   or is timed, its command buffers are recorded while it runs.  It stands behind device_groups.c. */

static int device_launch(DeviceQueue *d, size_t step, const int *iterations) {
  const DeviceNetwork *n = d->network;
  const DeviceBinding *b = &n->bindings[step];
  const size_t group = d->groups[step].group;
  const size_t groups = (n->steps[step].threads + group - 1) / group;
  const uint32_t columns = groups < VULKAN_MOST_GROUPS ? (uint32_t)groups : VULKAN_MOST_GROUPS;
  int first[VULKAN_MOST_OPERANDS];
  for (unsigned i = 0; i < b->operand_count; i++) {
    const DeviceOperand *operand = &n->operands[b->first_operand + i];
    first[i] = operand->first;
    for (unsigned j = 0; j < n->steps[step].loops; j++) first[i] += iterations[j] * operand->steps[j];
  }
  if (b->barrier) vulkan_wait(d->commands, VULKAN_AT_SHADER, VULKAN_AT_SHADER);
  vk.CmdBindPipeline(d->commands, VULKAN_COMPUTE, d->pipelines[b->shader]);
  vk.CmdPushConstants(d->commands, d->layout, VULKAN_SHADER, 0, (uint32_t)(b->operand_count * sizeof(int)), first);
  vk.CmdDispatch(d->commands, columns, (uint32_t)((groups + columns - 1) / columns), 1);
  return 0;
}

static void vulkan_copy_ports(DeviceQueue *d, const DevicePort *ports, size_t count, int upload) {
  const VulkanObject device = d->regions[DEVICE_MUTABLE].buffer, host = d->staging.buffer;
  for (size_t i = 0; i < count; i++) {
    const VulkanCopy copy = {ports[i].offset, ports[i].offset, ports[i].size};
    if (copy.size) vk.CmdCopyBuffer(d->commands, upload ? host : device, upload ? device : host, 1, &copy);
  }
}

/* Begins a command buffer of a run, whose commands come behind all those before. */
static int vulkan_continue(DeviceQueue *d, void **commands) {
  const uint32_t all = VULKAN_AT_SHADER | VULKAN_AT_COPY;
  const int status = vulkan_begin(d, commands);
  if (status) return status;
  d->commands = *commands;
  vulkan_wait(d->commands, all, all);
  vk.CmdBindDescriptorSets(d->commands, VULKAN_COMPUTE, d->layout, 0, 1, &d->set, 0, NULL);
  if (!d->nanoseconds) return 0;
  vk.CmdResetQueryPool(d->commands, d->clock, 0, VULKAN_STAMPS);
  vk.CmdWriteTimestamp(d->commands, VULKAN_END_OF_ALL, d->clock, 0);
  d->stamp_count = 1;
  return 0;
}

/* Adds the times between the timestamps of the last command buffer. */
static int vulkan_collect(DeviceQueue *d) {
  uint64_t stamps[VULKAN_STAMPS];
  VulkanProperties about;
  float period;
  if (!d->nanoseconds || d->stamp_count < 2) return 0;
  vk.GetPhysicalDeviceProperties(d->physical, &about);
  memcpy(&period, &about.limits.words[VULKAN_CLOCK_LIMIT], sizeof period);
  const int status = vk.GetQueryPoolResults(d->device, d->clock, 0, (uint32_t)d->stamp_count,
                                            d->stamp_count * sizeof *stamps, stamps, sizeof *stamps, VULKAN_64_BITS);
  for (size_t i = 1; status == 0 && i < d->stamp_count; i++) {
    d->nanoseconds[d->slots[i]] += (uint64_t)((double)period * (double)(stamps[i] - stamps[i - 1]));
  }
  return status;
}

/* Runs what was recorded while the network runs. */
static int vulkan_finish(DeviceQueue *d) {
  int status = vk.EndCommandBuffer(d->commands);
  if (status == 0) status = vulkan_submit(d, d->commands);
  return status ? status : vulkan_collect(d);
}

/* ... and goes on with the next command buffer. */
static int vulkan_flush(DeviceQueue *d) {
  const int status = vulkan_finish(d);
  return status ? status : vulkan_continue(d, &d->passing);
}

/* In a timed run: a timestamp when all commands before have ended, whose time goes to that slot. */
static int queue_stamp(DeviceQueue *d, size_t slot) {
  const uint32_t all = VULKAN_AT_SHADER | VULKAN_AT_COPY;
  if (!d->nanoseconds) return 0;
  vulkan_wait(d->commands, all, all);
  vk.CmdWriteTimestamp(d->commands, VULKAN_END_OF_ALL, d->clock, (uint32_t)d->stamp_count);
  d->slots[d->stamp_count++] = slot;
  return d->stamp_count < VULKAN_STAMPS ? 0 : vulkan_flush(d);
}

/* Records one run, of which the last command buffer is left open. */
static int vulkan_queue_all(DeviceQueue *d, void **commands) {
  const DeviceNetwork *n = d->network;
  int status = vulkan_continue(d, commands);
  if (status) return status;
  vulkan_wait(d->commands, VULKAN_AT_HOST, VULKAN_AT_COPY);
  vulkan_copy_ports(d, n->inputs, n->input_count, 1);
  vulkan_wait(d->commands, VULKAN_AT_COPY, VULKAN_AT_SHADER);
  status = queue_stamp(d, DEVICE_UPLOAD);
  if (status == 0) status = n->launch(d);
  if (status) return status;
  vulkan_wait(d->commands, VULKAN_AT_SHADER, VULKAN_AT_COPY);
  vulkan_copy_ports(d, n->outputs, n->output_count, 0);
  vulkan_wait(d->commands, VULKAN_AT_COPY, VULKAN_AT_HOST);
  return queue_stamp(d, DEVICE_DOWNLOAD);
}

static int vulkan_record(DeviceQueue *d, void **commands) {
  int status = vulkan_queue_all(d, commands);
  if (status == 0) status = vk.EndCommandBuffer(*commands);
  return status ? vulkan_failed(status, "recording the network") : 0;
}

static int queue_open(DeviceQueue *d, const uint8_t *weights) {
  int status = vulkan_instance(d);
  if (status == 0) status = vulkan_choose(d);
  if (status == 0) status = vulkan_device(d);
  if (status == 0) status = vulkan_regions(d, weights);
  if (status == 0) status = vulkan_interface(d);
  if (status == 0) status = vulkan_groups(d);
  if (status) return status;
  device_use_stated_groups(d);
  status = vulkan_pipelines(d);
  return status || d->network->reads ? status : vulkan_record(d, &d->recorded);
}

/* Makes the pipelines again, whose groups have these sizes, and records their launches. */
static int queue_regroup(DeviceQueue *d) {
  vk.DeviceWaitIdle(d->device);
  vulkan_destroy_pipelines(d);
  if (d->recorded) vk.FreeCommandBuffers(d->device, d->command_pool, 1, &d->recorded);
  d->recorded = NULL;
  const int status = vulkan_create_pipelines(d);
  return status || d->network->reads ? status : vulkan_record(d, &d->recorded);
}

static void vulkan_close_device(DeviceQueue *d) {
  vk.DeviceWaitIdle(d->device);
  vulkan_destroy_pipelines(d);
  if (d->clock) vk.DestroyQueryPool(d->device, d->clock, NULL);
  if (d->cache) vk.DestroyPipelineCache(d->device, d->cache, NULL);
  if (d->pool) vk.DestroyDescriptorPool(d->device, d->pool, NULL);
  if (d->layout) vk.DestroyPipelineLayout(d->device, d->layout, NULL);
  if (d->set_layout) vk.DestroyDescriptorSetLayout(d->device, d->set_layout, NULL);
  if (d->command_pool) vk.DestroyCommandPool(d->device, d->command_pool, NULL);
  if (d->fence) vk.DestroyFence(d->device, d->fence, NULL);
  for (unsigned i = 0; i < DEVICE_REGIONS; i++) vulkan_free(d, &d->regions[i]);
  vulkan_free(d, &d->staging);
  vk.DestroyDevice(d->device, NULL);
}

static void queue_close(DeviceQueue *d) {
  if (d->device) vulkan_close_device(d);
  if (d->instance) vk.DestroyInstance(d->instance, NULL);
  free(d->groups);
}

/* By the command buffer of all runs, or by those of this one. */
static int vulkan_run(DeviceQueue *d, void *recorded, uint8_t *tensors) {
  const DeviceNetwork *n = d->network;
  int status = 0;
  for (size_t i = 0; i < n->input_count; i++) {
    const DevicePort *p = &n->inputs[i];
    memcpy(d->ports + p->offset, tensors + p->offset, p->size);
  }
  if (recorded) {
    status = vulkan_submit(d, recorded);
  } else {
    status = vulkan_queue_all(d, &d->passing);
    if (status == 0) status = vulkan_finish(d);
    else if (device_is_own(status)) vk.EndCommandBuffer(d->commands); /* so that it can be recorded again */
  }
  if (status) return vulkan_failed(status, "running the network");
  for (size_t i = 0; i < n->output_count; i++) {
    const DevicePort *p = &n->outputs[i];
    memcpy(tensors + p->offset, d->ports + p->offset, p->size);
  }
  return 0;
}

static int device_run(DeviceQueue *d, uint8_t *tensors) {
  const int status = d->options.tune && !d->is_tuned ? device_tune(d, tensors) : 0;
  return status ? status : vulkan_run(d, d->recorded, tensors);
}

/* With timestamps, between which every command waits for those before. */
static int device_timed_run(DeviceQueue *d, uint8_t *tensors, uint64_t *nanoseconds) {
  const VulkanQueryPool clock = {.type = VULKAN_QUERY_POOL, .kind = VULKAN_TIMESTAMPS, .count = VULKAN_STAMPS};
  int status = d->clock ? 0 : vk.CreateQueryPool(d->device, &clock, NULL, &d->clock);
  if (status) return vulkan_failed(status, "creating timestamps");
  d->nanoseconds = nanoseconds;
  status = vulkan_run(d, NULL, tensors);
  d->nanoseconds = NULL;
  return status;
}
