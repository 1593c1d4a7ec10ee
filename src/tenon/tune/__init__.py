"""The search for the best way to compute each layer, and the table that remembers what it found."""
