"""The two intermediate representations: the graph of operators, and the loop IR of kernels."""
