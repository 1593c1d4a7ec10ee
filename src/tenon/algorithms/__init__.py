"""Algorithms: the ways to compute convolutions and matrix products, what each costs, and the kernels that it takes."""
