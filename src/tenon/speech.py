"""Speech to text, text to speech, embeddings of texts, and texts about images, in Python."""

from __future__ import annotations

from tenon.runtime.engine.sound import Sound, read_sound
from tenon.runtime.engine.wav_file import write_wav
from tenon.runtime.generation.embedder import Embedder
from tenon.runtime.generation.image_generator import ImageGenerator
from tenon.runtime.speech.live import HeardText, LiveRecognizer
from tenon.runtime.speech.models import DECODER, ENCODER
from tenon.runtime.speech.phonemes import phonemes_of
from tenon.runtime.speech.recognizer import Recognizer, SpokenText
from tenon.runtime.speech.subtitles import write_subtitles
from tenon.runtime.speech.voice import Voice, VoiceSettings, sizes

__all__ = [
    "DECODER",
    "ENCODER",
    "Embedder",
    "HeardText",
    "ImageGenerator",
    "LiveRecognizer",
    "Recognizer",
    "Sound",
    "SpokenText",
    "Voice",
    "VoiceSettings",
    "phonemes_of",
    "read_sound",
    "sizes",
    "write_subtitles",
    "write_wav",
]
