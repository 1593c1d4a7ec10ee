"""Bundles: their format, the C files beside the generated code, running them, libraries and pages that run them."""
