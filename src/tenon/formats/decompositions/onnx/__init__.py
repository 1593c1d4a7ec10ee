"""ONNX's operators, and those of the domains that exporters add to it, in operators of the core."""
