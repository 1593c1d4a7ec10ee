"""MACE's tools for ranges of tensors, over Tenon's public API."""
