"""Graphs of transformers of speech, text and images from their settings and named weights."""
