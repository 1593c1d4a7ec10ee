"""Kernel generators: from numbers (shapes, lanes, tiles) to loop IR.  They know no operator and no target."""
