"""MXNet: symbol and params."""
