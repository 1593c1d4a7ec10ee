"""Measurement of the candidate algorithms of each layer, and the table of measured times."""
