"""Choice of tokens from logits, and the stream of their text."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tenon.errors import InputError
from tenon.runtime.text.random_numbers import RandomNumbers
from tenon.runtime.text.sampling import Sampling, TokenSampler, powers
from tenon.runtime.text.text_stream import TextStream

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 3.0, -np.inf], np.float32)


def drawn(sampling: Sampling, count: int = 4000) -> dict[int, float]:
    """How often each token is chosen."""
    sampler = TokenSampler(sampling)
    return {token: n / count for token, n in Counter(sampler.choose(LOGITS) for _ in range(count)).items()}


def probabilities(temperature: float, tokens: list[int]) -> dict[int, float]:
    weights = {token: float(np.exp(LOGITS[token] / temperature)) for token in tokens}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def test_random_numbers_are_those_of_the_reference() -> None:
    """The first numbers of SplitMix64 for the seed 1234567, as its authors publish them."""
    numbers = RandomNumbers(1234567)
    assert [numbers.below(2**64) for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_greedy_takes_the_first_of_the_most_probable() -> None:
    assert TokenSampler(Sampling()).choose(LOGITS) == 1


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        (Sampling(1.0), [0, 1, 2, 3, 4]),
        (Sampling(2.0), [0, 1, 2, 3, 4]),
        (Sampling(1.0, top_k=3), [1, 2, 4]),
        (Sampling(1.0, top_k=1), [1]),
        (Sampling(1.0, top_p=0.8), [1, 2, 4]),
        (Sampling(1.0, top_p=0.0), [1]),
        (Sampling(1.0, min_p=0.3), [1, 2, 4]),
        (Sampling(1.0, top_k=4, top_p=0.99, min_p=0.2), [1, 2, 4]),
    ],
)
def test_tokens_are_as_frequent_as_they_are_probable(sampling: Sampling, tokens: list[int]) -> None:
    wanted = probabilities(sampling.temperature, tokens)
    counted = drawn(sampling.changed({"seed": 7}))
    assert counted.keys() == wanted.keys()
    for token, share in wanted.items():
        assert counted[token] == pytest.approx(share, abs=4 * (share / 4000) ** 0.5)


def test_powers_are_exponentials() -> None:
    scores = np.sort(np.random.default_rng(0).normal(0, 4, 500).astype(np.float32))[::-1]
    expected = np.exp((scores.astype(np.float64) - float(scores[0])) / 0.7)
    np.testing.assert_allclose(powers(scores, 0.7) / 2.0**40, expected, rtol=2e-6, atol=2.0**-40)


def test_a_seed_repeats_choices() -> None:
    first, second, other = [TokenSampler(Sampling(1.0, seed=seed)) for seed in (5, 5, 6)]
    chosen = [[sampler.choose(LOGITS) for _ in range(40)] for sampler in (first, second, other)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_penalties_are_by_definition() -> None:
    """Tokens of the context get other logits: 1 was chosen twice, 0 and 3 once."""
    sampling = Sampling(repetition_penalty=2.0)
    assert TokenSampler(sampling, [1, 3, 1, 0]).choose(LOGITS) == 4
    assert TokenSampler(sampling, [1, 4]).choose(LOGITS) == 2
    near = np.array([1.0, 1.1, 1.2], np.float32)
    assert TokenSampler(Sampling(presence_penalty=0.15), [2]).choose(near) == 1
    assert TokenSampler(Sampling(frequency_penalty=0.06), [2, 2, 1]).choose(near) == 2
    assert TokenSampler(Sampling(frequency_penalty=0.08), [2, 2]).choose(near) == 1
    assert TokenSampler(Sampling(presence_penalty=0.15, penalty_window=1), [2, 0]).choose(near) == 2


def test_masks_leave_no_other_token() -> None:
    allowed = np.array([False, False, True, True, False, False])
    assert TokenSampler(Sampling()).choose(LOGITS, allowed) == 2
    assert {TokenSampler(Sampling(9.0, seed=i)).choose(LOGITS, allowed) for i in range(30)} == {2, 3}
    with pytest.raises(InputError, match="no token can follow"):
        TokenSampler(Sampling()).choose(LOGITS, np.zeros(6, np.bool_))


@pytest.mark.parametrize("change", [{"temperature": -1}, {"top_p": 2}, {"top_k": -1}, {"temperature": float("nan")}])
def test_numbers_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(change))}="):
        Sampling().changed(change)


def test_recommended_sampling() -> None:
    assert Sampling.of({}) == Sampling()
    assert Sampling.of({"temperature": 0.6, "top_k": 20.0, "do_sample": 1}) == Sampling(0.6, top_k=20)
    assert Sampling.of({"temperature": 0.6, "do_sample": 0}) == Sampling()


def test_streams_hold_cut_characters_and_beginnings_of_stops_back() -> None:
    stream = TextStream(["STOP", "ab\u4f60"])
    data = "x\u00fcSTxab\u4f60y".encode()
    texts = [stream.add(bytes([byte])) for byte in data]
    assert texts[:6] == ["x", "", "\u00fc", "", "", "STx"]
    assert "".join(texts) == "x\u00fcSTx"
    assert stream.stopped
    assert (stream.add(b"more"), stream.finish()) == ("", "")


def test_streams_end_with_what_was_held() -> None:
    stream = TextStream(["STOP"])
    assert stream.add(b"aST") == "a"
    assert stream.add("\u4f60".encode()[:2]) == ""
    assert stream.finish() == "ST\ufffd"
    assert not stream.stopped
