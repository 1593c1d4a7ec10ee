/* Numbers that a run computes and the host reads between launches.  It stands behind device_queue.c. */

/* The i64 at a place, or the byte where `size` is 1; 0 if it cannot be read. */
static int64_t device_number(DeviceQueue *d, unsigned region, size_t offset, size_t size, int *status) {
  int64_t number = 0;
  uint8_t byte = 0;
  if (*status == 0) *status = queue_read(d, region, offset, size == 1 ? (void *)&byte : (void *)&number, size);
  if (*status) return 0;
  return size == 1 ? byte : number;
}
