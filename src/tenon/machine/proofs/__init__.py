"""Properties of kernels, proved before they are printed, and the count of their operations."""
