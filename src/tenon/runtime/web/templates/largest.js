/** Positions of the `count` largest elements, largest first. */
export function largest(array, count) {
  const order = Array.from(array.keys()).sort((a, b) => (array[b] > array[a] ? 1 : array[b] < array[a] ? -1 : a - b));
  return order.slice(0, count);
}
