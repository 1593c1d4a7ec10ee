"""The two intermediate representations: the graph of operators, and the loops that compute them."""
