"""Graphs and nets as model files."""
