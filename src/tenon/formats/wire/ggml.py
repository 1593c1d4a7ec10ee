"""How files in ggml's old format begin."""

MAGIC = (0x67676D6C).to_bytes(4, "little")
