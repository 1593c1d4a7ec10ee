"""Keras: .h5 and .keras."""
