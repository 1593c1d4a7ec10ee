"""The loop IR of kernels: loops, loads, stores and expressions over buffers."""
