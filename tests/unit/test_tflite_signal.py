"""TFLM's signal operators: graphs and compiled code compared with definitions in Python integers and with values of
TFLM's tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

import tenon
import tflm_signal as definition
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tflite_models import Model

RNG = np.random.default_rng(7)
NOISE = {
    "num_channels": 40,
    "smoothing": 409,
    "one_minus_smoothing": 15975,
    "alternate_smoothing": 983,
    "alternate_one_minus_smoothing": 15401,
    "smoothing_bits": 10,
    "spectral_subtraction_bits": 14,
    "min_signal_remaining": 819,
}
BANK = [
    np.array(v, np.int16)
    for v in (
        [9, 100, 4096, 0, 3000, 77, -5],
        [1, 3996, 0, 4096, 1096, 4019, 5],
        [2, 3, 5, 6, 6],
        [0, 1, 3, 4, 4],
        [1, 2, 1, 0, 3],
    )
]
"""Weights, unweights, first frequencies and first weights of five stretches, and how many of each they take."""


def gains() -> Array:
    """A decreasing table of quadratic segments from 32000; unused entries are -1."""
    rows = [[32000 >> k, -(16000 >> k), 1000 >> k, -1] for k in range(31)]
    return np.array([32000, 31900, 31800, -1, 0, -1, *np.ravel(rows)][:125], np.int16)


def wild(dtype: type, count: int) -> Array:
    """Numbers of all magnitudes, and the extremes of the type."""
    width, signed = 8 * np.dtype(dtype).itemsize, np.dtype(dtype).kind == "i"
    bits = RNG.integers(0, width, count)
    x = np.array([int(RNG.integers(0, 1 << 62)) * 4 % (2 << int(b)) for b in bits], np.uint64)
    most = (1 << (width - signed)) - 1
    ends: Array = np.array([-most - 1 if signed else 0, most, 0, 1, 2, 3], dtype)
    return np.concatenate([ends, x.astype(dtype)])[:count]


@dataclass
class Case:
    """One operator with inputs and expected outputs."""

    type: str
    inputs: dict[str, Array]
    constants: list[Array]
    options: dict[str, int]
    expected: list[Array]

    def add(self, model: Model, number: int) -> tuple[list[int], list[int]]:
        """Add the operator; returns its inputs (without states) and its outputs."""
        free = [k for k in self.inputs if not k.startswith("noise_estimate")]
        ports = [model.tensor(f"{k}{number}", v.shape, tenon_name(v)) for k, v in self.inputs.items() if k in free]
        fixed = [model.constant(f"c{number}_{i}", c) for i, c in enumerate(self.constants)]
        made = [model.tensor(f"y{number}_{i}", e.shape, tenon_name(e)) for i, e in enumerate(self.expected)]
        model.add(self.type, [*ports, *fixed], made, **self.options)
        return ports, made


def tenon_name(a: Array) -> str:
    return f"{a.dtype.kind}{8 * a.itemsize}"


def window() -> Case:
    x, weights = wild(np.int16, 48).reshape(2, 24), wild(np.int16, 12)
    y = definition.window(x.ravel().tolist(), weights.tolist(), 9)
    return Case("SignalWindow", {"x": x}, [weights], {"shift": 9}, [np.array(y, np.int16).reshape(2, 24)])


def auto_scale(largest: int) -> Case:
    x = RNG.integers(-largest, largest + 1, 31).clip(-32768, 32767).astype(np.int16)
    x[7] = -largest
    y, bits = definition.auto_scale(x.tolist())
    return Case("SignalFftAutoScale", {"x": x}, [], {}, [np.array(y, np.int16), np.array(bits, np.int32)])


def rfft(x: Array, length: int) -> Case:
    rows = [definition.rfft(row.tolist(), length, 8 * x.itemsize) for row in x.reshape(-1, x.shape[-1])]
    y = np.array(rows, x.dtype).reshape(*x.shape[:-1], length + 2)
    return Case("SignalRfft", {"x": x}, [], {"fft_length": length}, [y])


def irfft(x: Array) -> Case:
    rows = [definition.irfft(row.tolist(), 8 * x.itemsize) for row in x.reshape(-1, x.shape[-1])]
    y = np.array(rows, x.dtype).reshape(*x.shape[:-1], -1)
    return Case("SignalIrfft", {"x": x}, [], {"fft_length": y.shape[-1]}, [y])


def full_scale_waves() -> Array:
    """Square waves of full amplitude, whose FFT overflows 16 bits."""
    t = np.arange(64)
    waves = [np.where(np.sin(2 * np.pi * (t + 0.5) * f / 64 + p) < 0, -32768, 32767) for f, p in ((5, 0), (16, 0.8))]
    return np.array([*waves, t * 0 - 32768], np.int16)


def energy() -> Case:
    x = wild(np.int16, 18)
    x[6:8] = -32768
    y = definition.energy(x.tolist(), 2, 7)
    return Case("SignalEnergy", {"x": x}, [], {"start_index": 2, "end_index": 7}, [np.array(y, np.uint32)])


def filter_bank() -> Case:
    x = wild(np.uint32, 9)
    y = definition.filter_bank(x.tolist(), [t.tolist() for t in BANK], 4)
    return Case("SignalFilterBank", {"x": x}, BANK, {"num_channels": 4}, [np.array(y, np.uint64)])


def square_root() -> Case:
    near = [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, (1 << 64) - 1, (1 << 64) - (1 << 32), 0xFFFF * 0x10001 + 1]
    squares = [r * r + d for r in (1, 2, 3, 1000, 65535, 65536, 3 << 28, (1 << 32) - 1) for d in (0, -1, 1, r, r + 1)]
    x = np.concatenate([np.array([*near, *squares], np.uint64), wild(np.uint64, 99)])
    y = definition.square_root(x.tolist(), 3)
    inputs = {"x": x, "bits": np.array(3, np.int32)}
    return Case("SignalFilterBankSquareRoot", inputs, [], {}, [np.array(y, np.uint32)])


def subtraction(clamping: int) -> Case:
    x, noise, options = wild(np.uint32, 40), wild(np.uint32, 40)[::-1].copy(), {**NOISE, "clamping": clamping}
    y = definition.spectral_subtraction(x.tolist(), noise.tolist(), options)
    state = "noise_estimate" if clamping else "noise_estimate_2"
    inputs, expected = {"x": x, state: noise}, [np.array(v, np.uint32) for v in y]
    return Case("SignalFilterBankSpectralSubtraction", inputs, [], options, expected)


def pcan() -> Case:
    x, noise = wild(np.uint32, 90), wild(np.uint32, 96)[6:]
    noise[:6] = [0, 1, 2, 3, (1 << 32) - 1, 1024]
    y = definition.pcan(x.tolist(), noise.tolist(), gains().tolist(), 6)
    inputs = {"x": x, "noise": noise}
    return Case("SignalPCAN", inputs, [gains()], {"snr_shift": 6}, [np.array(y, np.uint32)])


def logarithm(scale: int) -> Case:
    x = np.concatenate([wild(np.uint32, 99), np.arange(3000, dtype=np.uint32)])
    y = definition.logarithm(x.tolist(), scale, 3)
    options = {"input_correction_bits": 3, "output_scale": scale}
    return Case("SignalFilterBankLog", {"x": x}, [], options, [np.array(y, np.int16)])


CASES: dict[str, Callable[[], Case]] = {
    "window": window,
    "silence": lambda: auto_scale(0),
    "quiet": lambda: auto_scale(9),
    "loud": lambda: auto_scale(32767),
    "largest": lambda: auto_scale(32768),
    "energy": energy,
    "bank": filter_bank,
    "rfft 64": lambda: rfft(full_scale_waves(), 64),
    "rfft 32": lambda: rfft(wild(np.int16, 21), 32),
    "rfft 16 of 32 bits": lambda: rfft(wild(np.int32, 32).reshape(2, 16), 16),
    "rfft 8 of 32 bits": lambda: rfft(wild(np.int32, 8), 8),
    "root": square_root,
    "irfft 32": lambda: irfft(wild(np.int16, 68).reshape(2, 34)),
    "irfft 64": lambda: irfft(np.concatenate([full_scale_waves(), full_scale_waves()[:, :2]], 1)),
    "irfft 16 of 32 bits": lambda: irfft(wild(np.int32, 18)),
    "clamped": lambda: subtraction(1),
    "unclamped": lambda: subtraction(0),
    "gain": pcan,
    "log": lambda: logarithm(64),
    "log scaled": lambda: logarithm(90001),
}


def test_every_operator_is_exact_and_compiles() -> None:
    """All operators in one model, by the references and compiled."""
    model, feeds, expected = Model(), dict[str, Array](), dict[str, Array]()
    ports, made = list[int](), list[int]()
    for number, make in enumerate(CASES.values()):
        case = make()
        inputs, outputs = case.add(model, number)
        ports += inputs
        made += outputs
        feeds |= {k if k.startswith("noise_") else f"{k}{number}": v for k, v in case.inputs.items()}
        expected |= {f"y{number}_{i}": e for i, e in enumerate(case.expected)}
        if case.type.endswith("Subtraction"):
            expected[next(k for k in case.inputs if k != "x") + "_out"] = case.expected[1]
    graph = importers.load(model.bytes(ports, made))
    with tenon.open(tenon.compile(graph)) as engine:
        compiled = engine.run(feeds)
    for results in (evaluate(graph, feeds), compiled):
        for name, array in expected.items():
            assert results[name].dtype == array.dtype
            np.testing.assert_array_equal(results[name], array, name)


def test_fft_overflow_wraps_around() -> None:
    """Checks that the full-scale waves overflow: without wrapping their spectra differ."""
    x = full_scale_waves()[0].tolist()
    wide = definition.Fixed(16)
    wide.cut = lambda x: x  # type: ignore[method-assign]
    pairs = list(zip(x[::2], x[1::2], strict=True))
    assert wide.transform(pairs) != definition.Fixed(16).transform(pairs)


def test_float_irfft() -> None:
    x = RNG.uniform(-1, 1, (2, 64)).astype(np.float32)
    spectrum = np.fft.rfft(x)
    y = np.stack([spectrum.real, spectrum.imag], -1).reshape(2, 66).astype(np.float32)
    output = run(Case("SignalIrfft", {"x": y}, [], {"fft_length": 64}, [x]))
    np.testing.assert_allclose(output, x, atol=1e-6)


def test_float_rfft() -> None:
    x = RNG.uniform(-1, 1, (2, 50)).astype(np.float32)
    spectrum = np.fft.rfft(x, 64)
    y = np.stack([spectrum.real, spectrum.imag], -1).reshape(2, 66).astype(np.float32)
    output = run(Case("SignalRfft", {"x": x}, [], {"fft_length": 64}, [y]))
    np.testing.assert_allclose(output, y, atol=1e-5)


# -------------------------------------------------------------------------------------------- published numbers
def run(case: Case) -> Array:
    model = Model()
    graph = importers.load(model.bytes(*case.add(model, 0)))
    states = {v.name: np.zeros(v.type.dims, v.type.dtype.numpy) for v in graph.inputs}
    feeds = {v.name: case.inputs[v.name[:-1]] for v in graph.inputs if v.name[:-1] in case.inputs}
    return next(iter(evaluate(graph, states | feeds).values()))


PUBLISHED: Mapping[str, tuple[str, dict[str, Array], dict[str, int], list[int]]] = {
    "root": (
        "SignalFilterBankSquareRoot",
        {"x": np.array([10528000193, 28362909357, 515262774, 11591835], np.uint64), "bits": np.array(7, np.int32)},
        {},
        [801, 1315, 177, 26],
    ),
    "log": (
        "SignalFilterBankLog",
        {"x": np.array([29, 21, 40, 4, 2], np.uint32)},
        {"output_scale": 1600, "input_correction_bits": 3},
        [8715, 8198, 9229, 5545, 4436],
    ),
    "log too large": (
        "SignalFilterBankLog",
        {"x": np.array([48, 20, 14], np.uint32)},
        {"output_scale": 32768, "input_correction_bits": 5},
        [32767, 15121, 3434],
    ),
    "rfft": ("SignalRfft", {"x": np.array([16384] + [0] * 63, np.int16)}, {"fft_length": 64}, [256, 0] * 33),
    "rfft of 32 bits": ("SignalRfft", {"x": np.array([16384] + [0] * 63, np.int32)}, {"fft_length": 64}, [256, 0] * 33),
    "irfft": ("SignalIrfft", {"x": np.array([256, 0] * 33, np.int16)}, {"fft_length": 64}, [256] + [0] * 63),
    "irfft of 32 bits": ("SignalIrfft", {"x": np.array([256, 0] * 33, np.int32)}, {"fft_length": 64}, [256] + [0] * 63),
    "scale": (
        "SignalFftAutoScale",
        {"x": np.array([238, 113, -88, -243, -5, -130, 159, -70], np.int16)},
        {},
        [30464, 14464, -11264, -31104, -640, -16640, 20352, -8960],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_values_of_tflm_tests(name: str) -> None:
    type, inputs, options, expected = PUBLISHED[name]
    dtype = {"SignalFilterBankSquareRoot": np.uint32, "SignalFilterBankLog": np.int16}.get(type, inputs["x"].dtype)
    assert run(Case(type, inputs, [], options, [np.array(expected, dtype)])).tolist() == expected


# ------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda case: case.options.clear(), "options are empty"),
        (lambda case: case.options.update(fft_length=48), "48 numbers"),
        (lambda case: case.options.update(fft_length=16), "do not fit"),
        (lambda case: case.inputs.update(x=wild(np.uint8, 21)), "u8"),
    ],
    ids=["no options", "no power of two", "too short", "type"],
)
def test_transforms_that_are_refused(change: Callable[[Case], None], match: str) -> None:
    case = CASES["rfft 32"]()
    change(case)
    with pytest.raises(UnsupportedError, match=match):
        run(case)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("bank", lambda case: case.options.update(num_channels=5), "5 channels"),
        ("bank", lambda case: case.inputs.update(x=wild(np.uint32, 8)), "outside"),
        ("gain", lambda case: case.constants.append(case.constants.pop()[:124]), "124"),
        ("log", lambda case: case.options.pop("output_scale"), "lack output_scale"),
        ("log", lambda case: case.options.update(input_correction_bits=40), "40 bits"),
        ("energy", lambda case: case.options.update(end_index=10), "from 2 to 10 of 9"),
        ("clamped", lambda case: case.options.update(num_channels=39), "39 channels"),
    ],
)
def test_tables_and_options_that_are_refused(name: str, change: Callable[[Case], None], match: str) -> None:
    case = CASES[name]()
    change(case)
    with pytest.raises(UnsupportedError, match=match):
        run(case)
