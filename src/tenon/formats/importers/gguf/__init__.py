"""Language models as llama.cpp and ggml store them (GGUF)."""
