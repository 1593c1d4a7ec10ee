"""Speech that is written down while it arrives, times of Whisper's texts, and subtitles."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from ggml_models import TINY, WORDS, whisper_file
from installed import environment, succeeds, tenon_script
from installed import tenon as command
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.speech.live import LiveRecognizer, VoiceActivity
from tenon.runtime.speech.timestamps import TimestampRules
from tenon.speech import DECODER, ENCODER, Recognizer, Sound, SpokenText, write_subtitles, write_wav
from transformer_models import whisper_tensors

RATE = 16000
END, FIRST = 10, 20
RULES = TimestampRules(FIRST, END)


class Counting:
    """Writes down how many samples it was given."""

    longest = 4.0

    def __init__(self) -> None:
        self.given = list[int]()

    def tokens(self, samples: Array) -> list[int]:
        self.given.append(len(samples))
        return [len(samples)]

    def text(self, tokens: Sequence[int]) -> str:
        return f" {tokens[0] / RATE:.2f}"


def voice(seconds: float) -> Array:
    """A tone with a short gap four times a second, as between syllables."""
    n = np.arange(int(seconds * RATE))
    return np.asarray(0.3 * np.sin(0.2 * n) * (n % 4000 >= 640), np.float32)


def background(seconds: float) -> Array:
    return np.random.default_rng(1).normal(0, 1e-4, int(seconds * RATE)).astype(np.float32)


def heard(sound: Array, part: int = 1600, **how: Any) -> list[tuple[float, float, str, bool]]:
    listener = LiveRecognizer(Counting(), **how)  # type: ignore[arg-type]  # it is one as far as it is used
    texts = [each for first in range(0, len(sound), part) for each in listener.hear(sound[first : first + part])]
    return [tuple(each) for each in (*texts, *listener.finish())]  # type: ignore[misc]  # four values each


@pytest.mark.parametrize(
    "samples", [np.zeros(9, np.int16), np.zeros((2, 9), np.float32), Sound(np.zeros(9), RATE), "x"]
)
def test_what_is_no_sound(samples: Any) -> None:
    with pytest.raises(InputError, match="divide integers of 16 bits by 32768"):
        list(LiveRecognizer(Counting()).hear(samples))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"step=-1, pause=0\.6: they are seconds"):
        LiveRecognizer(Counting(), step=-1)  # type: ignore[arg-type]


def test_silence_is_not_written_down() -> None:
    assert heard(background(3)) == []
    assert heard(np.zeros(2 * RATE, np.float32)) == []


def test_a_text_is_final_after_a_pause() -> None:
    texts = heard(np.concatenate([background(2), voice(2.5), background(2), voice(1), background(0.2)]))
    final = [each for each in texts if each[3]]
    assert len(final) == 2
    (start, end, text, _), (second, last, _, _) = final
    assert 1.5 < start < 2.0
    assert 5.0 < end < 5.3
    assert text == f"{end - start:.2f}"
    assert 5.9 < second < 6.5
    assert last == pytest.approx(7.7)
    drafts = [each for each in texts if not each[3]]
    assert [round(each[1], 1) for each in drafts if each[1] < 5] == sorted({round(e[1], 1) for e in drafts if e[1] < 5})
    assert len(drafts) >= 2


def test_a_text_is_cut_where_it_is_too_long() -> None:
    sound = np.concatenate([voice(2.5), voice(0.3) * 0.2, voice(6)])
    texts = [each for each in heard(sound) if each[3]]
    assert all(end - start <= Counting.longest for start, end, *_ in texts)
    assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(texts))
    assert 2.4 < texts[0][1] < 2.9  # the quiet part
    assert texts[0][0] < 0.1
    assert texts[-1][1] == pytest.approx(len(sound) / RATE)


def test_late_samples_give_one_draft_only() -> None:
    sound = np.concatenate([background(1), voice(2.6)])
    assert sum(not each[3] for each in heard(sound, len(sound))) == 1
    assert heard(sound, len(sound))[-1][:2] == heard(sound, 700)[-1][:2]


def test_a_steady_noise_becomes_background() -> None:
    activity, noise = VoiceActivity(), np.random.default_rng(2).normal(0, 0.03, (400, 320))
    spoken = [activity.speaks(frame) for frame in noise]
    assert not any(spoken[200:])
    assert activity.speaks(voice(0.1)[-320:])


# ----------------------------------------------------------------------------------------------- times
def allowed(made: list[int], likeliest: int) -> set[int]:
    logits = np.zeros(FIRST + 80)
    logits[likeliest] = 20
    RULES.apply(logits, made)
    return {int(token) for token in np.flatnonzero(np.isfinite(logits))}


def test_times_come_in_pairs_and_never_decrease() -> None:
    assert allowed([], 3) == set(range(FIRST, FIRST + 51))
    assert allowed([FIRST + 4], 3) == set(range(FIRST))
    assert allowed([FIRST + 4, 3], 3) == {*range(FIRST), *range(FIRST + 5, FIRST + 80)}
    assert allowed([FIRST + 4, 3, FIRST + 9], FIRST + 9) == set(range(FIRST + 9, FIRST + 80))
    assert allowed([FIRST + 4, 3, FIRST + 9], END) == {*range(END, FIRST), *range(FIRST + 9, FIRST + 80)}
    assert allowed([FIRST + 4, 3, FIRST + 9, FIRST + 9], 3) == set(range(FIRST))


def test_a_time_follows_where_all_times_are_likelier_than_a_word() -> None:
    logits = np.zeros(FIRST + 80)
    logits[3] = 4.0  # log(75) is 4.3
    RULES.apply(logits, [FIRST, 3])
    assert not np.isfinite(logits[:FIRST]).any()
    logits = np.zeros(FIRST + 80)
    logits[3] = 4.5
    RULES.apply(logits, [FIRST, 3])
    assert np.isfinite(logits[3])


def test_segments_of_tokens() -> None:
    tokens = [FIRST, 1, 2, FIRST + 50, FIRST + 60, 3, FIRST + 100, FIRST + 100, 4]
    assert RULES.segments(tokens, 5.0) == [(0.0, 1.0, [1, 2]), (1.2, 2.0, [3]), (2.0, 5.0, [4])]
    assert RULES.segments([], 5.0) == []


# ---------------------------------------------------------------------------------------------- commands
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live")
    (path / "ggml-small.bin").write_bytes(whisper_file(TINY, whisper_tensors(TINY))[0])
    samples = np.concatenate([background(0.5), voice(0.6), background(1)])
    write_wav(path / "x.wav", samples, RATE)
    return path


def test_subtitles_have_the_times_of_the_network(folder: Path) -> None:
    lines = succeeds("run", "ggml-small.bin", "x.wav", "--timestamps", "--output", "x.srt", cwd=folder).splitlines()
    data = (folder / "ggml-small.bin").read_bytes()
    with tenon.open(tenon.compile(data, **ENCODER)) as encoder, tenon.open(tenon.compile(data, **DECODER)) as decoder:
        sound = tenon.speech.read_sound(folder / "x.wav")
        texts = list(Recognizer(encoder, decoder).stream(Sound(sound.samples, RATE), times=True))
    assert [line.split("]  ")[1] for line in lines] == [each.text for each in texts]
    blocks = (folder / "x.srt").read_text(encoding="utf-8").split("\n\n")
    assert len(blocks) == len(texts) > 1
    for number, (block, line) in enumerate(zip(blocks, lines, strict=True), 1):
        times = line[1:].split("]")[0].replace(".", ",")
        assert block.rstrip("\n") == f"{number}\n{times}\n{line.split(']  ')[1]}"
    assert all(each.start <= each.end for each in texts)
    assert set(" ".join(each.text for each in texts).split()) <= {
        word.decode("utf-8", "replace").strip() for word in WORDS
    }


def test_samples_on_standard_input(folder: Path) -> None:
    samples = (folder / "x.wav").read_bytes()[44:]
    words = [str(tenon_script()), "run", "ggml-small.bin", "--stream", "--json"]
    done = subprocess.run(
        words, input=samples + b"\x01", capture_output=True, cwd=folder, env=environment(), check=True
    )
    listed = [json.loads(line) for line in done.stdout.splitlines()]
    final = [each for each in listed if each["final"]]
    assert final
    assert 0.0 < final[0]["start"] < 0.5
    assert all(a["end"] == pytest.approx(b["start"], abs=0.5) for a, b in pairwise(final))
    text = succeeds("run", "ggml-small.bin", "x.wav", "--stream", cwd=folder)
    assert text.splitlines() == [each["text"] for each in final]


def test_what_has_no_effect_is_refused(folder: Path) -> None:
    for words, why in (
        (("x.wav", "--output", "x.npz"), "spoken texts are written to .srt, .vtt, .txt files"),
        (("x.wav", "--features", "mfcc"), "speech is written down"),
        ((), "ggml-small.bin writes down speech: give a sound (.wav)"),
        (("x.wav", "--language", "de"), "knows one language only: leave out the language 'de'"),
    ):
        done = command("run", "ggml-small.bin", *words, cwd=folder)
        assert (done.returncode, why in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_subtitles_by_ending(tmp_path: Path) -> None:
    texts = [SpokenText(0.5, 3661.25, "one"), SpokenText(3662.0, 3663.0, "two")]
    for ending in ("srt", "vtt", "txt"):
        write_subtitles(tmp_path / f"x.{ending}", texts)
    assert (tmp_path / "x.txt").read_text(encoding="utf-8") == "one\ntwo\n"
    assert (tmp_path / "x.srt").read_text(encoding="utf-8") == (
        "1\n00:00:00,500 --> 01:01:01,250\none\n\n2\n01:01:02,000 --> 01:01:03,000\ntwo\n"
    )
    assert (tmp_path / "x.vtt").read_text(encoding="utf-8") == (
        "WEBVTT\n\n00:00:00.500 --> 01:01:01.250\none\n\n01:01:02.000 --> 01:01:03.000\ntwo\n"
    )
    with pytest.raises(InputError, match=r"spoken texts are written to \.srt"):
        write_subtitles(tmp_path / "x.doc", texts)
