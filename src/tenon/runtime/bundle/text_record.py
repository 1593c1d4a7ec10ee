"""The settings of a language model as a manifest has them, without what compiling needs."""

from __future__ import annotations

from tenon.network.graph.text_model import TextModel, Tokenizer
from tenon.runtime.bundle.manifest import TextRecord, TokenizerRecord


def text_record(model: TextModel, name: str) -> TextRecord:
    """The settings of the language model of a bundle with that ``name``."""
    fields = {each: getattr(model, each) for each in TextRecord._fields if each != "tokenizer"}
    stored = model.tokenizer
    record = None if stored is None else TokenizerRecord(stored.form, tokenizer_file(name))
    return TextRecord(**fields, tokenizer=record)


def text_model(record: TextRecord, content: bytes | None) -> TextModel:
    """The settings of a language model; ``content`` is that of the tokenizer's file."""
    fields = {each: getattr(record, each) for each in TextRecord._fields if each != "tokenizer"}
    kept = record.tokenizer
    tokenizer = Tokenizer(kept.form, content) if kept is not None and content is not None else None
    return TextModel(**fields, tokenizer=tokenizer)


def tokenizer_file(name: str) -> str:
    """The name of the file with the tokenizer of a bundle."""
    return f"{name}.tokenizer.json"
