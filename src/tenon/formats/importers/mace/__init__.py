"""MACE: .pb and .data."""
