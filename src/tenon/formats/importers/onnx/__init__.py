"""ONNX: every operator of every version, as the core operators of ``tenon.network.ops``."""
