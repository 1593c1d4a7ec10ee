"""Operators and layers outside of the core of operators, written in those of the core."""
