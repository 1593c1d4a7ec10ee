"""ONNX's operators on strings as arithmetic on bytes."""
