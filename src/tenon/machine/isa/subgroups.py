"""Exchanges between the threads of a subgroup: those that a GPU issues at once.

``shuffle_xor`` gives every thread the value of the thread whose number differs from its own in one bit.  Operands: an
element of shared memory for the own value and that of the other thread, the register with the value, and the one that
becomes the other's; number: the distance of the two threads, a power of two.  The instruction's body goes through
shared memory, with a barrier.  All threads of a block run the instruction, and no other statement touches its memory;
its barrier orders nothing else, because devices whose subgroups are large enough do without it.
"""

from __future__ import annotations

SHUFFLE_XOR = "shuffle_xor"

_CUDA = """\
template <typename T>
static __device__ __forceinline__ void shuffle_xor(T *, const T *, const T &value, T &other, int distance) {
  other = (T)__shfl_xor_sync(0xffffffffu, value, distance);
}"""

_GLSL = """\
#ifdef SUBGROUPS
#define shuffle_xor(own, others, value, other, distance) \\
  if (subgroup_size > distance) { other = subgroupShuffleXor(value, distance); } \\
  else { own = value; barrier(); other = others; }
#else
#define shuffle_xor(own, others, value, other, distance) own = value; barrier(); other = others
#endif"""

DEVICE_INSTRUCTIONS = {"cuda": {SHUFFLE_XOR: _CUDA}, "vulkan": {SHUFFLE_XOR: _GLSL}}
