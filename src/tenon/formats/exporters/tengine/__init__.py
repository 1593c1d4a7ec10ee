"""Tengine's tmfiles from graphs, quantised ones above all."""
