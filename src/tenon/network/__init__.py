"""The network: its graph, the operators, and the passes that rewrite graphs."""
