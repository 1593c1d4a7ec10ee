"""Kernel generators: loop IR from shapes, vector lanes and tile sizes.  They depend on no operator and no target."""
