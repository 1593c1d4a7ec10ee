"""From C text to machine code: find a compiler, run it, keep what it made, measure it."""
