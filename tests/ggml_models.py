"""Files of whisper.cpp with a small model of a seed."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from tenon.formats.decompositions.transformers.whisper import WhisperConfig
from tenon.network.graph.graph import Array
from tenon.network.graph.sound_features import mel_bands

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q5_0": 6, "q5_1": 7, "q8_0": 8}
WORDS = [b" w%d" % i for i in range(24)] + ["ä".encode()[:1], "ä".encode()[1:], b" ", b'"', b" <<", b"\xe2\x99"]
SPECIAL = 1608
"""Special tokens of a model for English."""

TINY = WhisperConfig(
    vocab_size=len(WORDS) + SPECIAL,
    d_model=32,
    encoder_layers=1,
    encoder_attention_heads=2,
    encoder_ffn_dim=128,
    decoder_layers=2,
    decoder_attention_heads=2,
    decoder_ffn_dim=128,
    num_mel_bins=8,
    max_source_positions=12,
    max_target_positions=24,
)
FILTERS = mel_bands(TINY.num_mel_bins, 400, 16000, 0, 8000, "htk").T.astype(np.float32)
"""Other mel bands than Whisper's, so that those of the file are seen to be used."""

_PARTS = {
    "self_attn_layer_norm": "attn_ln",
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
_ENDS = {
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens.weight": "decoder.token_embedding.weight",
    "encoder.layer_norm.weight": "encoder.ln_post.weight",
    "encoder.layer_norm.bias": "encoder.ln_post.bias",
    "decoder.layer_norm.weight": "decoder.ln.weight",
    "decoder.layer_norm.bias": "decoder.ln.bias",
}


def own_name(name: str) -> str:
    """The name that whisper.cpp has for a tensor of the library transformers."""
    name = name.removeprefix("model.")
    if name in _ENDS:
        return _ENDS[name]
    if ".layers." not in name:
        return name
    side, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"{side}.blocks.{layer}.{_PARTS[part]}.{kind}"


def in_blocks(matrix: Array, kind: str) -> tuple[bytes, Array]:
    """A matrix in blocks of a type, rounded to nearest, and the numbers that these stand for."""
    blocks = matrix.reshape(-1, 32)
    if kind == "q5_1":
        low = blocks.min(1, keepdims=True).astype(np.float16)
        scale = ((blocks.max(1, keepdims=True) - low) / 31).astype(np.float16)
        codes = np.rint((blocks - low) / np.float32(scale)).clip(0, 31).astype(np.uint8)
        numbers = codes * np.float32(scale) + np.float32(low)
    else:
        most = {"q8_0": 127, "q5_0": 15, "q4_0": 7}[kind]
        low = np.zeros((len(blocks), 0), np.float16)
        scale = (np.abs(blocks).max(1, keepdims=True) / most).astype(np.float16)
        whole = np.rint(blocks / np.float32(scale)).clip(-most - 1, most)
        numbers = whole * np.float32(scale)
        codes = (whole + (most + 1 if kind != "q8_0" else 0)).astype(np.int8).view(np.uint8)
    halves = codes[:, :16] & 15 | (codes[:, 16:] & 15) << 4
    high = np.packbits(codes >> 4 & 1, axis=1, bitorder="little") if "5" in kind[:2] else codes[:, :0]
    body = codes if kind == "q8_0" else np.concatenate([high, halves], 1)
    heads = np.concatenate([scale.view(np.uint8), low.view(np.uint8)], 1)
    return np.concatenate([heads, body], 1).tobytes(), numbers.reshape(matrix.shape).astype(np.float32)


def whisper_file(
    config: WhisperConfig,
    tensors: Mapping[str, Array],
    kind: str = "f32",
    words: Sequence[bytes] = WORDS,
    filters: Array = FILTERS,
) -> tuple[bytes, dict[str, Array]]:
    """A file with matrices of layers in ``kind``, and the numbers that its tensors stand for."""
    sizes = [
        config.vocab_size,
        config.max_source_positions,
        config.d_model,
        config.encoder_attention_heads,
        config.encoder_layers,
        config.max_target_positions,
        config.d_model,
        config.decoder_attention_heads,
        config.decoder_layers,
        config.num_mel_bins,
        1 if kind in ("f32", "f16") else 2008,
    ]
    data = struct.pack("<12i", 0x67676D6C, *sizes) + struct.pack("<2i", *filters.shape) + filters.tobytes()
    data += struct.pack("<i", len(words)) + b"".join(struct.pack("<i", len(word)) + word for word in words)
    numbers = dict[str, Array]()
    for name, array in tensors.items():
        matrix = array.ndim == 2 and "positions" not in name
        own = kind if matrix or (array.ndim == 3 and kind == "f16") else "f32"
        stored = array[:, None] if ".conv" in name and name.endswith("bias") else array
        if own in ("f32", "f16"):
            content = stored.astype(own[0] + str(int(own[1:]) // 8)).tobytes()
            numbers[name] = array.astype(own[0] + str(int(own[1:]) // 8)).astype(np.float32)
        else:
            content, numbers[name] = in_blocks(stored, own)
        label = own_name(name).encode()
        head = struct.pack(f"<3i{stored.ndim}i", stored.ndim, len(label), TYPES[own], *stored.shape[::-1])
        data += head + label + content
    return data, numbers
