"""Building a graph from the nodes of a model file."""
