"""Models that read images, of true structure and small size, with weights of a seed: as folders and as GGUF files."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gguf_models import ARRAY, BOOL, DEPTH, F32, HIDDEN, LAYER_NAMES, POST_NAMES, STRING, U32, DecoderFile, Pair, gguf
from tenon.network.graph.graph import Array
from transformer_models import Seeded, safetensors, tokenizer

WORDS = 64
ROW, START, END, AROUND, WHOLE, LINE, LINES = 60, 61, 62, 59, 58, 57, 56
PARTS = 50
"""Tokens: rows of images, what stands around them, line feeds, and the first of four parts of an image."""

SIDE, PATCH, WIDTH, INNER, HEADS = 32, 8, 32, 48, 2
"""Sizes of the tower."""

_SEPARATE = ("attn_norm", "ffn_norm")
_GEMMA = (*_SEPARATE, "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm")
_ENDS = {"token_embd": "embed_tokens", "output_norm": "norm"}


@dataclass(frozen=True)
class SeeingModel:
    """A kind of model: its decoder, its tower, and the settings of both.

    ``text`` are settings of the decoder and ``others`` of the model; ``prefix`` is that of the decoder's tensors.
    ``projector`` is its name in GGUF files, ``keys`` further keys of these.
    """

    name: str
    decoder: DecoderFile
    layers: int
    text: Mapping[str, Any]
    others: Mapping[str, Any]
    prefix: str
    projector: str
    special: Mapping[int, str]
    vision: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Pair] = field(default_factory=dict)
    patch: int = PATCH
    seed: int = 3

    @property
    def clip(self) -> bool:
        return self.name == "llava"

    @property
    def gemma(self) -> bool:
        return self.name == "gemma3"

    # ------------------------------------------------------------------------------------- safetensors
    def settings(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        text = {
            "model_type": "gemma3_text" if self.gemma else "llama",
            "vocab_size": WORDS,
            "hidden_size": HIDDEN,
            "intermediate_size": 96,
            "num_attention_heads": self.decoder.heads,
            "num_key_value_heads": self.decoder.key_heads,
            "num_hidden_layers": self.decoder.layers,
            "head_dim": DEPTH,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            **self.text,
        }
        vision = {
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": self.layers,
            "num_attention_heads": HEADS,
            "image_size": SIDE,
            "patch_size": self.patch,
            "layer_norm_eps": 1e-5,
            **self.vision,
        }
        return {"model_type": self.name, "text_config": text, "vision_config": vision, **self.others}

    def tensors(self) -> dict[str, Array]:
        """The tensors of ``model.safetensors``."""
        return {**self._decoder_tensors(), **self._tower_tensors()}

    def _decoder_tensors(self) -> dict[str, Array]:
        names = {**LAYER_NAMES, **(POST_NAMES if self.gemma else {})}
        result = {}
        for name, data in self.decoder.weights(self.seed).items():
            stem, kind = name.rsplit(".", 1)
            layer, own = stem.split(".", 2)[1:] if stem.startswith("blk.") else ("", stem)
            place = f"{self.prefix}layers.{layer}.{names[own]}" if layer else self.prefix + _ENDS.get(own, "")
            place = self.others.get("head", "lm_head") if own == "output" else place
            result[f"{place}.{kind}"] = data - np.float32(self.gemma and data.ndim == 1)
        return result

    def _tower_tensors(self) -> dict[str, Array]:
        w, side = Seeded(5), SIDE // self.patch
        tower = {"llava": "vision_tower.vision_model", "gemma3": "vision_tower.vision_model"}.get(
            self.name, "model.vision_model"
        )
        place = f"{tower}.embeddings"
        w.draw(f"{place}.patch_embedding.weight", WIDTH, 3, self.patch, self.patch)
        if self.clip:
            w.draw(f"{place}.class_embedding", WIDTH)
            w.norm(f"{tower}.pre_layrnorm", WIDTH)
        else:
            w.draw(f"{place}.patch_embedding.bias", WIDTH)
        w.draw(f"{place}.position_embedding.weight", side * side + self.clip, WIDTH)
        w.clip_layers(tower, self.layers, WIDTH, INNER)
        w.norm(f"{tower}.post_layernorm", WIDTH)
        self._projector_tensors(w)
        return w.tensors

    def _projector_tensors(self, w: Seeded) -> None:
        if self.clip:
            w.linear("multi_modal_projector.linear_1", WIDTH, HIDDEN)
            w.linear("multi_modal_projector.linear_2", HIDDEN, HIDDEN)
        elif self.gemma:
            w.draw("multi_modal_projector.mm_soft_emb_norm.weight", WIDTH)
            w.draw("multi_modal_projector.mm_input_projection_weight", WIDTH, HIDDEN, scale=0.3)
        else:
            w.linear("model.connector.modality_projection.proj", 4 * WIDTH, HIDDEN, bias=False)

    def write(self, folder: Path, **preprocessor: Any) -> Path:
        """The folder of the library transformers."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({k: v for k, v in self.settings().items() if k != "head"}))
        (folder / "model.safetensors").write_bytes(safetensors(self.tensors()))
        (folder / "tokenizer.json").write_bytes(tokenizer(self.words(), self.special))
        if preprocessor:
            (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
        return folder

    def words(self) -> list[str]:
        """The vocabulary: letters and digits, and line feeds as tokenizers of bytes write them."""
        words = [*string.ascii_letters, *string.digits, "!", "?"]
        words[LINE], words[LINES] = "\u010a", "\u010a\u010a"
        return words

    # -------------------------------------------------------------------------------------------- GGUF
    def decoder_file(self, **pairs: Pair) -> bytes:
        """The language model as a GGUF file; the rows of Llama's queries and keys in the order of neighbours."""
        names = [self.special.get(i, word) for i, word in enumerate(self.words())]
        stated: dict[str, Pair] = {
            "tokenizer.ggml.model": (STRING, "gpt2"),
            "tokenizer.ggml.pre": (STRING, "gpt-2"),
            "tokenizer.ggml.tokens": (ARRAY, (STRING, names)),
            "tokenizer.ggml.token_type": (ARRAY, (U32, [3 if i in self.special else 1 for i in range(WORDS)])),
            "tokenizer.ggml.merges": (ARRAY, (STRING, ["\u010a \u010a"])),
            **self.decoder.pairs,
            **pairs,
        }
        tensors = dict[str, tuple[str, tuple[int, ...], bytes]]()
        for name, data in self.decoder.weights(self.seed).items():
            if not self.gemma and name.endswith(("attn_q.weight", "attn_k.weight")):
                data = data.reshape(-1, 2, DEPTH // 2, HIDDEN).swapaxes(1, 2).reshape(data.shape)
            tensors[name] = ("f32", data.shape, data.tobytes())
        return gguf(replace(self.decoder, pairs=stated).keys(), tensors)

    def tower_file(self, kind: str = "f32", *, exchanged: bool = False, **changes: Pair) -> bytes:
        """The tower as an mmproj file, with weights of a ``kind``; ``exchanged``: as older converters name matrices."""
        keys: dict[str, Pair] = {
            "general.architecture": (STRING, "clip"),
            "clip.has_vision_encoder": (BOOL, True),
            "clip.projector_type": (STRING, self.projector),
            "clip.use_gelu": (BOOL, not self.clip),
            "clip.vision.image_size": (U32, SIDE),
            "clip.vision.patch_size": (U32, self.patch),
            "clip.vision.embedding_length": (U32, WIDTH),
            "clip.vision.feed_forward_length": (U32, INNER),
            "clip.vision.block_count": (U32, self.layers),
            "clip.vision.attention.head_count": (U32, HEADS),
            "clip.vision.attention.layer_norm_epsilon": (F32, 1e-5),
            "clip.vision.image_mean": (ARRAY, (F32, [0.5, 0.5, 0.5])),
            "clip.vision.image_std": (ARRAY, (F32, [0.5, 0.5, 0.5])),
            **self.keys,
            **{f"clip.{name.replace('__', '.')}": pair for name, pair in changes.items()},
        }
        stored = {}
        for name, data in self._tower_tensors().items():
            own = _gguf_name(name, exchanged=exchanged)
            if own:
                data = data + np.float32(own == "mm.soft_emb_norm.weight")
                wide = kind == "f16" and data.ndim > 1
                content = data.astype(np.float16 if wide else np.float32).tobytes()
                stored[own] = ("f16" if wide else "f32", data.shape, content)
        return gguf(keys, stored)


_GGUF = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "pre_layrnorm": "v.pre_ln",
    "post_layernorm": "v.post_ln",
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
    "multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
    "model.connector.modality_projection.proj": "mm.model.fc",
}
_GGUF_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def _gguf_name(name: str, *, exchanged: bool) -> str:
    """The name of a tower's tensor in GGUF files."""
    own = name.removeprefix("vision_tower.").removeprefix("model.vision_model.").removeprefix("vision_model.")
    if own == "embeddings.class_embedding":
        return "v.class_embd"
    if own == "multi_modal_projector.mm_input_projection_weight":
        return "mm.input_projection.weight"
    stem, kind = own.rsplit(".", 1)
    if stem.startswith("encoder.layers."):
        number, part = stem.removeprefix("encoder.layers.").split(".", 1)
        named = _GGUF_LAYER[part]
        if exchanged and named.startswith("ffn"):
            named = "ffn_down" if named == "ffn_up" else "ffn_up"
        return f"v.blk.{number}.{named}.{kind}"
    return f"{_GGUF[stem]}.{kind}"


_LLAMA = DecoderFile("llama", vocabulary=WORDS)
_CLIP_COLOURS: dict[str, Pair] = {
    "clip.vision.image_mean": (ARRAY, (F32, [0.48145466, 0.4578275, 0.40821073])),
    "clip.vision.image_std": (ARRAY, (F32, [0.26862954, 0.26130258, 0.27577711])),
}
LLAVA = SeeingModel(
    "llava",
    _LLAMA,
    3,
    {"tie_word_embeddings": False},
    {"image_token_index": ROW, "tie_word_embeddings": False, "head": "language_model.lm_head"},
    "language_model.model.",
    "mlp",
    {ROW: "<image>"},
    {"model_type": "clip_vision_model", "projection_dim": WIDTH},
    {**_CLIP_COLOURS, "clip.vision.feature_layer": (ARRAY, (U32, [2]))},
)
SMOLVLM = SeeingModel(
    "smolvlm",
    _LLAMA,
    2,
    {"pad_token_id": 0},
    {"image_token_id": ROW, "pad_token_id": 0, "scale_factor": 2, "tie_word_embeddings": False},
    "model.text_model.",
    "idefics3",
    {
        ROW: "<image>",
        AROUND: "<fake_token_around_image>",
        WHOLE: "<global-img>",
        **{PARTS + i: f"<row_{1 + i // 2}_col_{1 + i % 2}>" for i in range(4)},
    },
    {},
    {"clip.vision.projector.scale_factor": (U32, 2), "clip.vision.preproc_image_size": (U32, 2 * SIDE)},
)
GEMMA3 = SeeingModel(
    "gemma3",
    DecoderFile(
        "gemma3",
        7,
        norms=_GEMMA,
        vocabulary=WORDS,
        pairs={"attention.sliding_window": (U32, 24), "rope.freq_base": (F32, 1e6)},
    ),
    2,
    {
        "tie_word_embeddings": False,
        "sliding_window": 24,
        "query_pre_attn_scalar": DEPTH,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    {
        "image_token_index": ROW,
        "boi_token_index": START,
        "eoi_token_index": END,
        "mm_tokens_per_image": 16,
        "tie_word_embeddings": False,
        "head": "language_model.lm_head",
    },
    "language_model.model.",
    "gemma3",
    {ROW: "<image_soft_token>", START: "<start_of_image>", END: "<end_of_image>"},
    {"vision_use_head": False},
    {"clip.vision.projector.scale_factor": (U32, 2)},
    4,
)
MODELS = {model.name: model for model in (LLAVA, SMOLVLM, GEMMA3)}


def photo(height: int = SIDE, width: int = SIDE) -> Array:
    """An image of smooth colours and some noise, bytes [height, width, 3]."""
    rng = np.random.default_rng(8)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (5 + i) + i) * np.cos(y / (7 - i)) for i in range(3)]
    return (127 + 90 * np.stack(waves, -1) + rng.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)


def row_tokens(tokens: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Tokens whose ROW stands for the rows of images."""
    left = iter(rows)
    return [next(left) if token == ROW else token for token in tokens]
