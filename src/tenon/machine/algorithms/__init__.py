"""Algorithms for convolutions and matrix products, with their costs and kernels."""
