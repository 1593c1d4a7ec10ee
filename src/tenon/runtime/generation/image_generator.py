"""Text about an image, by a language model that reads one."""

from __future__ import annotations

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import Engine
from tenon.runtime.generation.decoder import Decoder
from tenon.runtime.generation.generator import Generator, Prompt
from tenon.runtime.text.chat_template import conversation, special_names

MARK = "<image>"
"""The token that stands for an image in prompts."""

_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"
"""Tokens around the rows of an image, and before those of one that is not cut into parts."""


class ImageGenerator(Generator):
    """Generates text about an image: ``look`` takes what the tower gives, prompts have "<image>" where it stands.

    A prompt without it begins with the image.  Raises InputError for a network that reads no images, and as
    ``Generator`` does.
    """

    def __init__(self, model: Engine) -> None:
        super().__init__(model)
        name = self.text.ports.get("image")
        number = self.tokenizer.number(MARK)
        if name is None or number is None:
            raise InputError(f"'{self.engine.name}' is no language model that reads images")
        self._mark, self._rows = number, self.engine.inputs[name].shape[0]

    def look(self, features: Array) -> None:
        """Read an image, by the rows f32 [n, width] that its tower gives; what was said of another one is forgotten."""
        if not isinstance(self._decoder, Decoder):
            raise InputError(f"'{self.engine.name}' reads one image at a time: leave out sequences (--sequences)")
        self._decoder.reset()
        self._decoder.image = features

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt, and numbers behind the vocabulary for the rows of the image.  Raises as
        ``Generator.tokens_of`` does, and InputError for several images."""
        if isinstance(prompt, str):
            text = prompt if MARK in prompt else MARK + prompt
        else:
            text = conversation(self.text.chat_template, prompt, special_names(self.text, self.tokenizer.name))
        if text.count(MARK) > 1:
            raise InputError(f"the prompt has {text.count(MARK)} images: one is read")
        around, whole = (name if self.tokenizer.number(name) is not None else "" for name in (_AROUND, _WHOLE))
        shown = text.replace(MARK, f"{around}{whole}{MARK * self._rows}{around}")
        tokens = self.tokenizer.encode(shown, special=isinstance(prompt, str))
        if len(tokens) >= self.context:
            raise InputError(
                f"the prompt has {len(tokens)} tokens, and the caches have room for {self.context}: shorten it, or "
                "compile the model with more (--context, context=...)"
            )
        rows = iter(range(self._decoder.vocabulary, self._decoder.vocabulary + self._rows))
        return [next(rows) if token == self._mark else token for token in tokens]
