"""PyTorch: modules and exported programs, where torch is installed."""
