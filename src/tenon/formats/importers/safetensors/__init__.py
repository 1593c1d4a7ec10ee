"""Safetensors files with the settings of a model of the library transformers (``config.json``) beside them."""
