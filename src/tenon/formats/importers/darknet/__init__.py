"""Darknet: .cfg and .weights."""
