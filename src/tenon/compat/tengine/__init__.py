"""Tengine's quantisation tools, over Tenon's public API."""
