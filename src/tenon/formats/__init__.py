"""Model files: reading and writing them, and the decompositions of their operators."""
