"""From an optimised graph to a program: layouts, order of execution, memory, kernel calls."""
