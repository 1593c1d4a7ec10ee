"""Writes small models with random weights, and a sound: ``python random_models.py FOLDER``.

``whisper`` writes down sounds (pieces of 2 seconds), ``voice.onnx`` speaks as Piper's voices do, and ``vision`` is of
the kind of SmolVLM, with images of 32x32 pixels.  ``speech.wav`` has three tones with pauses.
"""

from __future__ import annotations

import json
import struct
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx

RATE = 16000
WORDS = ("the", "a", "cat", "dog", "mouse", "house", "tree", "sun", "moon", "ran", "sat", "slept", "saw", "and", "but")
WORDS += ("then", "very", "small", "happy", "old", "garden", "found")
PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
"""Bytes that stand for themselves in tokenizers of bytes; the others have the characters from 256 on."""

BYTES = [chr(byte) for byte in PRINTED] + [chr(256 + i) for i in range(256 - len(PRINTED))]
START, END, NO_TIMES = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"
TIMES = [f"<|{i / 50:.2f}|>" for i in range(101)]
TURN, IMAGE = "<end_of_utterance>", "<image>"
TEMPLATE = (
    "{% for m in messages %}User:{% for part in m.content %}"
    "{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}<end_of_utterance>\n{% endfor %}Assistant:"
)


class Weights(dict[str, Any]):
    """Random weights by name."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def draw(self, name: str, *shape: int, scale: float = 0.1) -> None:
        self[name] = self.rng.normal(0, scale, shape).astype("<f4")

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> None:
        self.draw(f"{name}.weight", outputs, inputs, scale=inputs**-0.5)
        if bias:
            self.draw(f"{name}.bias", outputs)

    def norm(self, name: str, width: int, *, bias: bool = True) -> None:
        self[f"{name}.weight"] = np.ones(width, "<f4")
        if bias:
            self[f"{name}.bias"] = np.zeros(width, "<f4")


def safetensors(tensors: dict[str, Any]) -> bytes:
    """The content of ``model.safetensors``."""
    header, content = dict[str, Any](), b""
    for name, array in tensors.items():
        place = [len(content), len(content) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": place}
        content += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def tokenizer(special: list[str]) -> dict[str, Any]:
    """The content of ``tokenizer.json``: bytes, words behind a space, and special tokens."""
    names = [*BYTES, *(f"\u0120{word}" for word in WORDS), *special]
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {name: i for i, name in enumerate(names)}
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[name], "content": name, **flags} for name in special],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocabulary, "merges": []},
    }


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Any], special: list[str], ends: list[str]) -> None:
    """Write the folder of a model; ``ends`` are the tokens that begin and end a text."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = tokenizer(special)
    begin, end = (tokens["model"]["vocab"][name] for name in ends)
    generation = {"decoder_start_token_id": begin, "eos_token_id": end, "suppress_tokens": list(range(len(BYTES)))}
    contents = {"config": config, "tokenizer": tokens, "generation_config": generation}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors))


def whisper(folder: Path, seed: int = 3) -> None:
    """A model of the structure of Whisper; a piece of sound has 100 positions of 0.02 seconds."""
    special, width, inner, bands, positions, room = [START, END, NO_TIMES, *TIMES], 32, 64, 16, 100, 10
    w, tokens = Weights(seed), len(BYTES) + len(WORDS) + len(special)
    w.draw("model.encoder.conv1.weight", width, bands, 3, scale=1)
    w.draw("model.encoder.conv2.weight", width, width, 3)
    w.draw("model.encoder.conv1.bias", width)
    w.draw("model.encoder.conv2.bias", width)
    w.draw("model.encoder.embed_positions.weight", positions, width)
    w.draw("model.decoder.embed_tokens.weight", tokens, width, scale=1)
    w.draw("model.decoder.embed_positions.weight", room, width, scale=4)
    for side, layers, attentions in (("encoder", 1, ("self_attn",)), ("decoder", 2, ("self_attn", "encoder_attn"))):
        for i in range(layers):
            name = f"model.{side}.layers.{i}"
            for attention in attentions:
                w.norm(f"{name}.{attention}_layer_norm", width)
                for part in ("q", "k", "v", "out"):
                    w.linear(f"{name}.{attention}.{part}_proj", width, width, bias=part != "k")
            w.norm(f"{name}.final_layer_norm", width)
            w.linear(f"{name}.fc1", width, inner)
            w.linear(f"{name}.fc2", inner, width)
        w.norm(f"model.{side}.layer_norm", width)
    config: dict[str, Any] = {"model_type": "whisper", "vocab_size": tokens, "d_model": width, "num_mel_bins": bands}
    config |= {"max_source_positions": positions, "max_target_positions": room}
    for side, layers in (("encoder", 1), ("decoder", 2)):
        config |= {f"{side}_layers": layers, f"{side}_attention_heads": 2, f"{side}_ffn_dim": inner}
    write(folder, config, w, special, [START, END])


def vision(folder: Path, seed: int = 1) -> None:
    """A model of the structure of SmolVLM: an image of 32x32 pixels is 4 rows before the text."""
    special, width, inner, heads, layers = [TURN, IMAGE, "<fake_token_around_image>", "<global-img>"], 64, 128, 4, 2
    w, tokens = Weights(seed), len(BYTES) + len(WORDS) + len(special)
    tower = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tower |= {"image_size": 32, "patch_size": 8, "hidden_act": "gelu", "layer_norm_eps": 1e-5}
    eye = "model.vision_model"
    w.draw(f"{eye}.embeddings.patch_embedding.weight", 32, 3, 8, 8)
    w.draw(f"{eye}.embeddings.patch_embedding.bias", 32)
    w.draw(f"{eye}.embeddings.position_embedding.weight", 16, 32)
    for i in range(2):
        name = f"{eye}.encoder.layers.{i}"
        for part in ("q", "k", "v", "out"):
            w.linear(f"{name}.self_attn.{part}_proj", 32, 32)
        w.norm(f"{name}.layer_norm1", 32)
        w.norm(f"{name}.layer_norm2", 32)
        w.linear(f"{name}.mlp.fc1", 32, 48)
        w.linear(f"{name}.mlp.fc2", 48, 32)
    w.norm(f"{eye}.post_layernorm", 32)
    w.linear("model.connector.modality_projection.proj", 32 * 4, width, bias=False)
    w.draw("model.text_model.embed_tokens.weight", tokens, width, scale=1)
    w.norm("model.text_model.norm", width, bias=False)
    for i in range(layers):
        name = f"model.text_model.layers.{i}"
        for part in ("q", "k", "v", "o"):
            w.linear(f"{name}.self_attn.{part}_proj", width, width, bias=False)
        for part, sizes in (("gate", (width, inner)), ("up", (width, inner)), ("down", (inner, width))):
            w.linear(f"{name}.mlp.{part}_proj", *sizes, bias=False)
        for part in ("input_layernorm", "post_attention_layernorm"):
            w.norm(f"{name}.{part}", width, bias=False)
    w.draw("lm_head.weight", tokens, width, scale=1)
    w["lm_head.weight"][: len(BYTES)] = 0  # it writes words
    w["lm_head.weight"][len(BYTES) + len(WORDS) :] = 0
    text = {"model_type": "llama", "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads}
    text |= {"num_hidden_layers": layers, "head_dim": width // heads, "max_position_embeddings": 256}
    config: dict[str, Any] = {"model_type": "smolvlm", "scale_factor": 2, "tie_word_embeddings": False}
    config |= {"vision_config": tower, "text_config": {**text, "rms_norm_eps": 1e-5}}
    write(folder, config, w, special, [TURN, TURN])
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


SILENT, MARKS = "_^$ .,!?", "ˈˌː"
SPOKEN = "abdefhijklmnoprstuvwxzæðŋɐ\u0251ɒɔəɚɛɜ\u0261\u026aɹɾʃʊʌʒ\u0294θᵻ"
VOICE = """
<ir_version: 8, opset_import: ["" : 15]>
voice (int64[batch_size, phonemes] input, int64[batch_size] input_lengths, float[3] scales) => (float[a, b, c] output)
<int64 zero = {0}, int64 unit = {1}, int64[1] one = {1}, int64[1] zeros = {0}, int64[3] form = {1, 1, -1}>
{
  ids = Squeeze (input, zeros)
  times = Gather (durations, ids)
  factor = Gather (scales, one)
  longer = Mul (times, factor)
  whole = Ceil (longer)
  ends = CumSum (whole, zero)
  total = ReduceSum <keepdims = 0> (whole)
  count = Cast <to = 7> (total)
  frames = Range (zero, count, unit)
  places = Cast <to = 1> (frames)
  column = Unsqueeze (places, one)
  over = LessOrEqual (ends, column)
  flags = Cast <to = 7> (over)
  index = ReduceSum <keepdims = 0> (flags, one)
  spoken = Gather (ids, index)
  waves = Gather (sounds, spoken)
  output = Reshape (waves, form)
}
"""
"""Durations of phonemes, as many frames of 256 samples, each with the sound of its phoneme."""


def voice(path: Path) -> None:
    """A voice with the inputs and outputs of Piper: each phoneme is a tone."""
    numbers = {p: [i] for i, p in enumerate(SILENT + SPOKEN + MARKS)}
    durations = np.array([*[1] * 3, *[5] * (len(SILENT) - 3), *[5] * len(SPOKEN), 0, 0, 3], "<f4")
    cycles = np.zeros((len(numbers), 1))  # in a frame
    cycles[len(SILENT) : -len(MARKS), 0] = 2 + np.arange(len(SPOKEN)) % 9
    n = np.arange(256)
    sounds = (0.3 * np.sin(2 * np.pi * cycles * n / 256) * np.sin(np.pi * n / 256)).astype("<f4")
    model = onnx.parser.parse_model(VOICE)
    for name, array in (("durations", durations), ("sounds", sounds)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path.write_bytes(model.SerializeToString())
    settings = {"audio": {"sample_rate": RATE}, "espeak": {"voice": "en-us"}, "phoneme_id_map": numbers}
    settings |= {"inference": {"noise_scale": 0.667, "length_scale": 1, "noise_w": 0.8}}
    path.with_name(f"{path.name}.json").write_text(json.dumps(settings), encoding="utf-8")


def sound(path: Path) -> None:
    """Three tones of 0.8 seconds with pauses of 0.7 seconds behind them."""
    n = np.arange(int(0.8 * RATE))
    pause = np.random.default_rng(0).normal(0, 1e-4, int(0.7 * RATE))
    parts = [np.concatenate([0.3 * np.sin(pitch * n) * (n % 4000 >= 640), pause]) for pitch in (0.1, 0.2, 0.4)]
    samples = np.concatenate([pause, *parts])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    place = Path(sys.argv[1])
    whisper(place / "whisper")
    vision(place / "vision")
    voice(place / "voice.onnx")
    sound(place / "speech.wav")
