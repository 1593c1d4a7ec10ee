"""Moonshine's encoder and decoder beside onnxruntime, with the same files: ``python bench/moonshine.py FOLDER X.wav``.

FOLDER has ``encoder_model.ort``, ``decoder_model_merged.ort`` and ``tokenizer.bin``.  Both run in turn; times are
processor seconds, of the encoder with the keys and values of all layers (of onnxruntime with the first
token, which it computes along), and of a token.  Both texts are printed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tenon
from tenon.runtime.speech.pieces import pieces
from tenon.speech import DECODER, ENCODER, Recognizer, read_sound

RATE = 16000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("sound", type=Path)
    parser.add_argument("--seconds", type=float, nargs="+", default=[2, 5, 10])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--agree", action="store_true", help="count the tokens that both find likeliest, and stop")
    parser.add_argument("--profile", action="store_true", help="print the slowest layers of the encoder")
    arguments = parser.parse_args()
    samples = read_sound(arguments.sound).at(RATE).samples.astype(np.float32)
    ours = _Ours(arguments.folder, arguments.threads, arguments.profile)
    peer = _OnnxRuntime(arguments.folder, arguments.threads)
    if arguments.agree:
        print(json.dumps(_agreement(samples, ours, peer)))
        return
    for seconds in arguments.seconds:
        piece = samples[: int(seconds * RATE)]
        times: dict[str, list[tuple[float, float]]] = {"tenon": [], "onnxruntime": []}
        texts = {}
        for _ in range(arguments.repeat):
            for who, run in (("tenon", ours), ("onnxruntime", peer)):
                began = time.process_time()
                run.encode(piece)
                encoded = time.process_time() - began
                began = time.process_time()
                tokens = run.decode(int(6.5 * seconds))
                times[who].append((encoded, (time.process_time() - began) / max(1, len(tokens))))
                texts[who] = ours.recognizer.text(tokens)
        least = {
            who: [round(1000 * min(column), 3) for column in zip(*rows, strict=True)] for who, rows in times.items()
        }
        ratios = [round(b / a, 2) for a, b in zip(least["tenon"], least["onnxruntime"], strict=True)]
        print(json.dumps({"seconds": len(piece) / RATE, "encoder_token_ms": least, "ratios": ratios, "texts": texts}))
        if arguments.profile:
            _print_profile(ours.encoder, {"samples": piece[None]})


class _Ours:
    def __init__(self, folder: Path, threads: int, profile: bool) -> None:
        path = folder / "encoder_model.ort"
        self.encoder = tenon.open(tenon.compile(path, threads=threads, profile=profile, **ENCODER), threads=threads)
        self.decoder = tenon.open(tenon.compile(path, threads=threads, **DECODER), threads=threads)
        self.recognizer = Recognizer(self.encoder, self.decoder)

    def encode(self, samples: Any) -> None:
        results = self.encoder.run({"samples": samples[None]}, copy=False)
        for name in (name for name in results if name in self.decoder.inputs):
            self.decoder.inputs[name][:, :, : results[name].shape[2]] = results[name]
        self.decoder.inputs["positions"][...] = results["cross.0.key"].shape[2]
        self.decoder.reset()

    def decode(self, most: int, forced: Sequence[int] = ()) -> list[int]:
        """The likeliest tokens, each behind those before it or behind the ``forced`` ones."""
        tokens = [1]
        while len(tokens) <= most and (forced or tokens[-1] != 2):
            self.decoder.inputs["tokens"][...] = [1, *forced][len(tokens) - 1] if forced else tokens[-1]
            tokens.append(int(self.decoder.run(copy=False)["logits"].argmax()))
        return tokens[1:]


class _OnnxRuntime:
    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        names = ("encoder_model", "decoder_model_merged")
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / f"{name}.ort"), options, providers=["CPUExecutionProvider"])
            for name in names
        )
        self.results = [port.name for port in self.decoder.get_outputs()]
        self.caches = {p.name: (1, p.shape[1], 1, p.shape[3]) for p in self.decoder.get_inputs() if "past" in p.name}

    def encode(self, samples: Any) -> None:
        self.mask = np.ones((1, len(samples)), np.int64)
        (self.states,) = self.encoder.run(None, {"input_values": samples[None], "attention_mask": self.mask})
        empty = {name: np.zeros(shape, np.float32) for name, shape in self.caches.items()}
        self._run(1, empty, cached=False)  # makes keys and values of all layers, as the encoder of Tenon does
        self.first = dict(self.made)

    def decode(self, most: int, forced: Sequence[int] = ()) -> list[int]:
        caches = {name: self.first[name.replace("past_key_values", "present")] for name in self.caches}
        tokens = [int(self.first["logits"][0, -1].argmax())]
        while len(tokens) < most and (forced or tokens[-1] != 2):
            self._run(forced[len(tokens) - 1] if forced else tokens[-1], caches, cached=True)
            caches |= {
                name: self.made[name.replace("past_key_values", "present")] for name in caches if ".decoder." in name
            }
            tokens.append(int(self.made["logits"][0, -1].argmax()))
        return tokens

    def _run(self, token: int, caches: dict[str, Any], *, cached: bool) -> None:
        feeds = {"input_ids": np.array([[token]]), "encoder_hidden_states": self.states, **caches}
        feeds |= {"encoder_attention_mask": self.mask, "use_cache_branch": np.array([cached])}
        self.made = dict(zip(self.results, self.decoder.run(None, feeds), strict=True))


def _agreement(samples: Any, ours: _Ours, peer: _OnnxRuntime) -> dict[str, int]:
    """The tokens of onnxruntime, in pieces of at most 30, 10 and 6 seconds; how many of them are the likeliest ones
    behind those before them by Tenon, and by onnxruntime where the samples differ by 1e-6."""
    counts = {"tokens": 0, "tenon": 0, "onnxruntime of other samples": 0}
    for begin, end in (cut for longest in (30.0, 10.0, 6.0) for cut in pieces(samples, RATE, longest)):
        piece = np.ascontiguousarray(samples[begin:end])
        peer.encode(piece)
        tokens = peer.decode(190)
        counts["tokens"] += len(tokens)
        noise = 1 + 1e-6 * np.random.default_rng(begin).normal(size=piece.shape)
        for who, run, given in (
            ("tenon", ours, piece),
            ("onnxruntime of other samples", peer, (piece * noise).astype(np.float32)),
        ):
            run.encode(given)
            chosen = run.decode(len(tokens), tokens)
            counts[who] += sum(a == b for a, b in zip(chosen, tokens, strict=True))
    return counts


def _print_profile(engine: tenon.Engine, feeds: dict[str, Any]) -> None:
    """The slowest kernel calls on these feeds, in milliseconds."""
    stamps = []
    for _ in range(5):
        engine.run(feeds)
        stamps.append(np.diff(engine.timestamps().astype(np.int64)))
    least = np.array(stamps).min(0) / 1e6
    print(f"{least.sum():8.3f}  all")
    for i in np.argsort(-least)[:25]:
        call = engine.manifest.nodes[i]
        print(f"{least[i]:8.3f}  {call.op:16} {call.kernel:40} {list(call.output)}  {call.layer}")


if __name__ == "__main__":
    main()
