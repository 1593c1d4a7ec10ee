"""Text about images, by a language model that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from tenon.errors import InputError, LengthError, ModelError
from tenon.network.graph.dtype import Array
from tenon.network.graph.text_model import ImageText
from tenon.runtime.engine import Engine
from tenon.runtime.generation.generator import Generator, Prompt
from tenon.runtime.generation.image_messages import as_texts, images_of
from tenon.runtime.generation.image_reader import ImageFeatures, ImageReader
from tenon.runtime.generation.image_rows import ImageRows
from tenon.runtime.text.chat_template import Messages, conversation, special_names


class ImageGenerator(Generator):
    """Generates text about images.

    ``look`` takes what the tower gives for the images that the next prompts are about, in their order; a prompt has the
    model's mark ("<image>", ``mark``) where an image stands, and one without it begins with the images.  With the
    ``tower`` itself, messages may have images too: ``{"type": "image", "image": photo}`` or ``{"type": "image_url",
    "image_url": {"url": "data:image/png;base64,..."}}`` among the parts of their content.

    Raises InputError for a network that reads no images, and as ``Generator`` does.
    """

    def __init__(self, model: Engine, tower: Engine | None = None) -> None:
        super().__init__(model)
        name = self.text.ports.get("image")
        if name is None or self.text.image is None:
            raise InputError(f"'{self.engine.name}' is no language model that reads images")
        self._image: ImageText = self.text.image
        self._reader = None if tower is None else ImageReader(tower, self._image)
        self._known = ImageRows(self._decoder.vocabulary, self.engine.inputs[name].shape[-1])
        self._decoder.read_images(self._known)
        self._looked, self._reading = list[ImageFeatures](), Lock()
        self._row = self.tokenizer.number(self._image.row) if self._image.row else None

    @property
    def mark(self) -> str:
        """The text that stands for an image in prompts."""
        return self._image.mark

    def look(self, *images: ImageFeatures | Array) -> None:
        """Read images, by what their tower gives: rows f32 [n, width], or ``ImageFeatures`` of images that are cut."""
        self._looked = [
            image if isinstance(image, ImageFeatures) else ImageFeatures(np.asarray(image)[None]) for image in images
        ]

    def read(self, *photos: Any) -> None:
        """Look at photos, images of Pillow or their files.  Raises InputError where the tower was not given."""
        self.look(*(self._features(photo) for photo in photos))

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt, and numbers behind the vocabulary for the rows of images.  Raises as
        ``Generator.tokens_of`` does, and InputError for another number of images than were given."""
        images = self._looked
        if isinstance(prompt, str):
            text = prompt if self.mark in prompt else self.mark * len(images) + prompt
        else:
            messages, given = images_of(prompt)
            if any(photo is not None for photo in given):
                images = [self._features(photo) for photo in given]
            text = self._conversation(messages, len(images))
        count = text.count(self.mark)
        if count != len(images):
            raise InputError(f"the prompt has {count} images, and {len(images)} are given")
        tokens = self._expanded(text, images, special=isinstance(prompt, str))
        if len(tokens) >= self.context:
            raise LengthError(
                f"the prompt has {len(tokens)} tokens, and the caches have room for {self.context}: shorten it, or "
                "compile the model with more (--context, context=...)"
            )
        return self._known.held(tokens)

    def _features(self, photo: Any) -> ImageFeatures:
        if self._reader is None:
            raise InputError(f"'{self.engine.name}' has no tower of images here: give it, or the rows of images")
        if photo is None:
            raise InputError("a message has an image without its content")
        with self._reading:
            return self._reader.read(photo)

    def _conversation(self, messages: Messages, count: int) -> str:
        """The text of a conversation; templates that know nothing of images get messages of one text each."""
        names = special_names(self.text, self.tokenizer.name)
        try:
            text = conversation(self.text.chat_template, messages, names)
            if text.count(self.mark) == count:
                return text
        except ModelError:
            if not count:
                raise
        return conversation(self.text.chat_template, as_texts(messages, self.mark), names)

    def _expanded(self, text: str, images: Sequence[ImageFeatures], *, special: bool) -> list[int]:
        """The tokens of a text whose marks stand for images."""
        texts, rows = [""], list[list[int]]()
        first, *others = text.split(self.mark)
        texts[-1] += first
        for image, behind in zip(images, others, strict=True):
            tokens = iter(self._known.add(image.rows.reshape(-1, image.rows.shape[-1])))
            for before in self._befores(image):
                texts[-1] += before
                rows.append([next(tokens) for _ in range(image.rows.shape[1])])
                texts.append("")
            texts[-1] += self._image.after + behind
        if self._row is None:
            pieces = [self.tokenizer.encode(each, special=special and i == 0) for i, each in enumerate(texts) if each]
            return self._woven(texts, pieces, rows)
        return self._filled(texts, rows, special=special)

    def _befores(self, image: ImageFeatures) -> list[str]:
        """The texts before the rows of each part of an image."""
        form, (lines, columns) = self._image, image.grid
        if not lines or not form.parts:
            return [form.before] * len(image.rows)
        part, line = form.parts
        texts = [part.format(row=row + 1, column=column + 1) for row in range(lines) for column in range(columns)]
        for row in range(1, lines):
            texts[row * columns] = line + texts[row * columns]
        return [*texts, line + line + form.before]

    def _woven(self, texts: Sequence[str], pieces: Sequence[list[int]], rows: Sequence[list[int]]) -> list[int]:
        """Texts and rows of images in turn, for a vocabulary without a token that stands for a row."""
        tokens, left = list[int](), iter(pieces)
        if not texts[0] and self.text.add_bos and self.text.bos is not None:
            tokens.append(self.text.bos)
        for i, text in enumerate(texts):
            tokens += next(left) if text else []
            tokens += rows[i] if i < len(rows) else []
        return tokens

    def _filled(self, texts: Sequence[str], rows: Sequence[list[int]], *, special: bool) -> list[int]:
        """The tokens of one text with a token for each row, which those of the images replace."""
        row = self._image.row
        if any(row in text for text in texts):
            raise InputError(f"the text has '{row}', which stands for rows of images: leave it out")
        shown = "".join(text + (row * len(rows[i]) if i < len(rows) else "") for i, text in enumerate(texts))
        left = iter([token for each in rows for token in each])
        return [next(left) if token == self._row else token for token in self.tokenizer.encode(shown, special=special)]
