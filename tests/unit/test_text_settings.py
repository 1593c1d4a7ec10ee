"""The tokenizer and chat template of a language model, from the files beside it into a bundle and back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import tenon
from tenon.errors import BundleError, FormatError, InputError, ModelError
from tenon.network.graph.text_shapes import decoder_shapes
from text_models import TEMPLATE, byte_pairs, language_model, talking_decoder, written_model


def test_settings_are_those_of_the_files_beside_the_model(tmp_path: Path) -> None:
    text = tenon.load(written_model(tmp_path, temperature=0.5, top_k=20)).text
    assert text is not None
    assert text.tokenizer is not None
    ports, end = {"tokens": "input_ids", "logits": "logits"}, byte_pairs()["added_tokens"][0]["id"]
    assert (text.kind, text.architecture, text.ports, text.context) == ("decoder", "words", ports, 64)
    assert (text.eos, text.chat_template, text.generation) == ((end,), TEMPLATE, {"temperature": 0.5, "top_k": 20})
    assert json.loads(text.tokenizer.content) == byte_pairs()


def test_a_folder_of_onnxruntime_genai_is_a_model(tmp_path: Path) -> None:
    """The file genai_config.json says what config.json and generation_config.json say elsewhere."""
    path = written_model(tmp_path)
    for name in ("config", "generation_config"):
        (tmp_path / f"{name}.json").unlink()
    path.rename(tmp_path / "model.onnx")
    model = {"type": "phi3", "context_length": 48, "bos_token_id": 1, "eos_token_id": [2, 3], "decoder": {}}
    settings = {"model": model, "search": {"do_sample": True, "temperature": 0.6, "top_p": 0.9}}
    (tmp_path / "genai_config.json").write_text(json.dumps(settings))
    text = tenon.load(tmp_path).text
    assert text is not None
    assert (text.architecture, text.context, text.eos[:2]) == ("phi3", 48, (2, 3))
    assert text.generation == {"temperature": 0.6, "top_p": 0.9, "do_sample": 1.0}
    with tenon.Generator(tmp_path, context=40, no_tuning=True) as generator:
        assert generator.generate("the cat", max_tokens=3, temperature=0).prompt_tokens


def test_a_quantiser_says_how_language_models_take_fewer_bits(tmp_path: Path) -> None:
    (tmp_path / "net.gguf").write_bytes(talking_decoder(layers=1).file())
    with pytest.raises(ModelError, match=r"its weights can be stored in 8 or 4 bits \(tenon compile --weight-format"):
        tenon.quantize(str(tmp_path / "net.gguf"), [])


def test_a_model_without_tokenizer_has_ports_only() -> None:
    text = tenon.load(language_model(20)).text
    assert text is not None
    assert text.tokenizer is None
    assert text.ports == {"tokens": "input_ids", "logits": "logits"}


def test_caches_that_cannot_be_addressed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes heads * width * 4 bytes of a cache; the message says how many there is room for."""
    monkeypatch.setattr("tenon.network.graph.text_shapes.LARGEST_BUFFER", 4096)
    for graph in (tenon.load(written_model(tmp_path)), tenon.load(_gguf(tmp_path))):
        caches = [value.type.shape for value in graph.inputs if value.name.startswith("past")]
        token = 4 * max(
            math.prod(dim for dim in (*c[:-2], c[-1]) if isinstance(dim, int)) for c in caches if len(c) > 1
        )
        decoder_shapes(graph, context=4095 // token)
        with pytest.raises(InputError, match=rf"would take 4096 bytes.*at most context={4095 // token} \(--context\)"):
            decoder_shapes(graph, context=4096 // token)


def _gguf(folder: Path) -> Path:
    path = folder / "net.gguf"
    path.write_bytes(talking_decoder(layers=1).file())
    return path


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize("content", ["{", "[1]"])
def test_damaged_settings_name_their_file(tmp_path: Path, name: str, content: str) -> None:
    path = written_model(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(FormatError, match=rf"{name}: it is no JSON"):
        tenon.load(path)


def test_bundles_have_the_settings(tmp_path: Path) -> None:
    """In a folder, in a file and in memory; a tokenizer that is missing or damaged is an error."""
    path = written_model(tmp_path / "model")
    graph = tenon.load(path)
    bundle = tenon.compile(path, shapes=decoder_shapes(graph), name="net", threads=1, no_tuning=True)
    folder, file = bundle.save(tmp_path / "net"), bundle.save(tmp_path / "net.tenon")
    for source in (bundle, folder, file):
        with tenon.open(source) as engine:
            assert engine.text == graph.text
            assert engine.fork().text == graph.text
    (folder / "net.tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match=r"net\.tokenizer\.json is damaged"):
        tenon.open(folder)
    (folder / "net.tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"net\.tokenizer\.json is missing"):
        tenon.open(folder)
