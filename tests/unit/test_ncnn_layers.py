"""ncnn's layers of attention, matrices, data movement and volumes, compared with definitions in NumPy."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

from evaluate import evaluate
from small_models import ncnn_net
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

RNG = np.random.default_rng(7)
MARK = bytes(4)


def rand(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def stored(*arrays: Array, plain: bool = False) -> bytes:
    """Weights of a layer, with a flag before each array except the ``plain`` ones."""
    return b"".join((b"" if plain else MARK) + np.asarray(a, "<f4").tobytes() for a in arrays)


def every(line: str, *inputs: Array, weights: bytes = b"") -> list[Array]:
    names = [("w", "h", "d", "c")[: x.ndim - 1] if x.ndim == 5 else ("w", "h", "c")[: x.ndim - 1] for x in inputs]
    ids = {"w": 0, "h": 1, "d": 11, "c": 2}
    lines = []
    for i, (x, axes) in enumerate(zip(inputs, names, strict=True)):
        shape = " ".join(f"{ids[a]}={n}" for a, n in zip(axes, x.shape[:0:-1], strict=True))
        lines.append(f"Input in{i} 0 1 x{i} {shape}")
    text = "\n".join(["7767517", f"{len(lines) + 1} 9", *lines, line, ""]).encode()
    graph = importers.load(text, weights=weights or b"\0")
    return list(evaluate(graph, {f"x{i}": x for i, x in enumerate(inputs)}).values())


def run(line: str, *inputs: Array, weights: bytes = b"") -> Array:
    return every(line, *inputs, weights=weights)[0]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def convolved(x: Array, w: Array) -> Array:
    """Over any number of spatial axes, without padding, stride 1."""
    sizes = [n - k + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    out = np.zeros((1, len(w), *sizes), np.float32)
    for place in itertools.product(*map(range, w.shape[2:])):
        part = x[0]
        for axis, (a, n) in enumerate(zip(place, sizes, strict=True)):
            part = part.take(range(a, a + n), axis + 1)
        out[0] += np.tensordot(w.reshape(*w.shape[:2], -1)[:, :, np.ravel_multi_index(place, w.shape[2:])], part, 1)
    return out


def spread(x: Array, w: Array, stride: int) -> Array:
    """The transpose of a convolution by w [outputs, inputs, ...]."""
    sizes = [(n - 1) * stride + k for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    out = np.zeros((1, len(w), *sizes), np.float32)
    for place in np.ndindex(x.shape[2:]):
        at = np.ix_(
            range(len(w)), *(range(p * stride, p * stride + k) for p, k in zip(place, w.shape[2:], strict=True))
        )
        out[0][at] += np.tensordot(x.reshape(x.shape[1], -1)[:, np.ravel_multi_index(place, x.shape[2:])], w, (0, 1))
    return out


X = rand(1, 4, 6, 5)
V = rand(1, 2, 4, 5, 6)
S = rand(1, 5, 8)
W1, W3 = rand(3, 5, 3), rand(3, 2, 2, 3, 2)
K = rand(2, 4, 3, 3)


def bins(x: Array, axis: int, count: int) -> Array:
    n = x.shape[axis]
    return np.stack(
        [x.take(range(i * n // count, -(-(i + 1) * n // count)), axis).mean(axis) for i in range(count)], axis
    )


def pooled_pyramid(x: Array, levels: int) -> Array:
    parts = []
    for level in range(levels):
        count = 2**level
        kernel = [-(-n // count) for n in x.shape[2:]]
        rest = [k * count - n for k, n in zip(kernel, x.shape[2:], strict=True)]
        padded = np.pad(x, [(0, 0), (0, 0), *(((r + 1) // 2, r // 2) for r in rest)])
        tiles = padded.reshape(1, -1, count, kernel[0], count, kernel[1])
        parts.append(tiles.max((3, 5)).ravel())
    return np.concatenate(parts)[None]


def spectra(x: Array, n: int, hop: int, power: int) -> Array:
    padded = np.pad(x[0], n // 2, mode="reflect")
    window = 0.5 * (1 - np.cos(2 * np.pi * np.arange(n) / n))
    frames = [np.fft.rfft(padded[a : a + n] * window) for a in range(0, len(padded) - n + 1, hop)]
    output = np.stack(frames, 1)[None]
    return np.stack([output.real, output.imag], -1) if power == 0 else np.abs(output) ** power


FLAT = rand(1, 30)
G = rand(1, 3, 4, 2)
M, N = rand(1, 4, 6), rand(1, 6, 3)
T = rand(7, 4)
WIDE = X[:, :3, :4, :3]
PLACED = X.copy()
PLACED[:, 1:4, 2:6, 2:5] = WIDE
COLUMNS = rand(1, 2 * 4, 6)


def folded(x: Array) -> Array:
    out = np.zeros((1, 2, 3, 4), np.float32)
    for tap, (i, j) in enumerate(itertools.product(range(2), range(2))):
        out[0, :, i : i + 2, j : j + 3] += x.reshape(2, 4, 2, 3)[:, tap]
    return out


def unfolded(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    parts = [padded[:, :, i : i + 6, j : j + 5] for i in range(3) for j in range(3)]
    return np.stack(parts, 2).reshape(1, 36, 30)


def rotary(x: Array, cosine: Array, sine: Array, *, neighbours: bool) -> Array:
    a, b = (x[..., ::2], x[..., 1::2]) if neighbours else np.split(x, 2, -1)
    parts = a * cosine - b * sine, a * sine + b * cosine
    return np.stack(parts, -1).reshape(x.shape) if neighbours else np.concatenate(parts, -1)


H = rand(1, 2, 3, 8)
ANGLES = rand(1, 3, 4)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
KEYS, VALUES = rand(1, 1, 4, 8), rand(1, 1, 4, 6)
SDPA = softmax(H @ KEYS.swapaxes(2, 3) / np.sqrt(8)) @ VALUES

CASES: list[tuple[str, list[Array], bytes, Array]] = [
    ("Convolution1D c 1 1 x0 y 0=3 1=3 6=45", [S], stored(W1), convolved(S, W1)),
    ("Convolution3D c 1 1 x0 y 0=3 1=2 11=3 21=2 6=72 9=1", [V], stored(W3), np.maximum(convolved(V, W3), 0)),
    ("Convolution c 2 1 x0 x1 y 0=2 1=3 6=72 19=1", [X, K[None]], b"", convolved(X, K)),
    ("Deconvolution1D c 1 1 x0 y 0=3 1=3 3=2 6=45", [S], stored(W1), spread(S, W1, 2)),
    ("Deconvolution3D c 1 1 x0 y 0=3 1=2 11=3 21=2 3=2 6=72", [V], stored(W3), spread(V, W3, 2)),
    ("Pooling p 1 1 x0 y 0=1 7=1 8=3 18=4", [X], b"", bins(bins(X, 2, 4), 3, 3)),
    ("Pooling1D p 1 1 x0 y 0=0 1=2 2=2", [S], b"", S.reshape(1, 5, 4, 2).max(3)),
    ("Pooling1D p 1 1 x0 y 0=1 4=1", [S], b"", S.mean(2)),
    ("Pooling3D p 1 1 x0 y 0=1 7=1 8=3 18=2 28=3", [V], b"", bins(bins(bins(V, 2, 3), 3, 2), 4, 3)),
    ("SPP s 1 1 x0 y 0=0 1=3", [X], b"", pooled_pyramid(X, 3)),
    ("StatisticsPooling s 1 1 x0 y 0=1", [X], b"", np.concatenate([X.mean((2, 3)), X.std((2, 3))], 1)),
    ("Unfold u 1 1 x0 y 1=3 4=1", [X], b"", unfolded(X)),
    ("Fold f 1 1 x0 y 1=2 20=4 21=3", [COLUMNS], b"", folded(COLUMNS)),
    (
        "LRN l 1 1 x0 y 0=1 1=3 2=0.5 3=0.75 4=2.0",
        [X],
        b"",
        X
        / (
            2
            + 0.5
            * sum(
                np.pad(X * X, ((0, 0), (0, 0), (1, 1), (1, 1)))[:, :, i : i + 6, j : j + 5]
                for i in range(3)
                for j in range(3)
            )
            / 9
        )
        ** 0.75,
    ),
    ("ArgMax a 1 1 x0 y 0=1 1=3", [FLAT], b"", np.stack([np.sort(FLAT[0])[::-1][:3], np.argsort(-FLAT[0])[:3]])[None]),
    ("CopyTo c 2 1 x0 x1 y 0=2 1=2 2=1", [X, WIDE], b"", PLACED),
    ("CopyTo c 2 1 x0 x1 y -23309=3,1,-4,2 -23311=3,0,1,2", [X, WIDE], b"", PLACED),
    ("CumulativeSum c 1 1 x0 y 0=-1", [X], b"", X.cumsum(3)),
    ("Diag d 1 1 x0 y 0=1", [FLAT[:, :4]], b"", np.diag(FLAT[0, :4], 1)[None]),
    ("Diag d 1 1 x0 y 0=-1", [M], b"", M[0].diagonal(-1)[None]),
    ("Flip f 1 1 x0 y -23300=2,0,-1", [X], b"", X[:, ::-1, :, ::-1]),
    (
        "Shrink s 1 1 x0 y 0=0.1 1=0.4",
        [X],
        b"",
        np.where(X < -0.4, X + np.float32(0.1), np.where(X > 0.4, X - np.float32(0.1), 0)),
    ),
    ("Crop c 2 1 x0 x1 y 0=1 1=2 2=1", [X, WIDE], b"", X[:, 1:4, 2:6, 1:4]),
    ("Crop c 1 1 x0 y 0=1 13=1 3=2 4=-233 14=2 5=-233 8=1", [V], b"", V[:, :-1, 1:3, :, 1:3]),
    ("Interp i 2 1 x0 x1 y 0=1", [X, rand(1, 1, 12, 10)], b"", X.repeat(2, 2).repeat(2, 3)),
    ("Interp i 1 1 x0 y 0=2 3=2 4=3", [FLAT], b"", np.broadcast_to(FLAT[..., None, None], (1, 30, 2, 3))),
    (
        "Padding p 1 1 x0 y 0=1 1=0 2=2 3=1 6=4",
        [X],
        stored(np.arange(4.0), plain=True),
        np.stack([np.pad(X[0, q], ((1, 0), (2, 1)), constant_values=q) for q in range(4)])[None],
    ),
    ("Spectrogram s 1 1 x0 y 0=8 1=2 2=3 4=1", [FLAT], b"", spectra(FLAT, 8, 3, 2)),
    ("Spectrogram s 1 1 x0 y 0=8 1=0 2=3 4=1", [FLAT], b"", spectra(FLAT, 8, 3, 0)),
    ("Gemm g 2 1 x0 x1 y 0=0.5", [M, N], b"", 0.5 * (M @ N)),
    ("Gemm g 1 1 x0 y 3=1 5=1 6=1 8=7 9=6 10=4", [M], stored(rand(7, 6), rand(7)), np.empty(0)),
    ("Gemm g 3 1 x0 x1 x2 y 1=2.0 14=1 11=1", [M, N, rand(1, 4)], b"", np.empty(0)),
    ("Einsum e 2 1 x0 x1 y -23300=10,105,107,44,107,106,45,62,105,106", [M, N], b"", M @ N),
    ("Embed e 1 1 x0 y 0=4 1=7 2=0 3=28", [np.array([[3, 0, 9, 6]], np.float32)], stored(T), T[[3, 0, 6, 6]][None]),
    (
        "RMSNorm r 1 1 x0 y 0=5 1=0.01",
        [X],
        stored(np.arange(5.0), plain=True),
        X / np.sqrt((X * X).mean(3, keepdims=True) + 0.01) * np.arange(5),
    ),
    ("RotaryEmbed r 3 1 x0 x1 x2 y 0=0", [H, COS, SIN], b"", rotary(H, COS[:, None], SIN[:, None], neighbours=False)),
    ("RotaryEmbed r 3 1 x0 x1 x2 y 0=1", [H, COS, SIN], b"", rotary(H, COS[:, None], SIN[:, None], neighbours=True)),
    ("SDPA s 3 1 x0 x1 x2 y", [H, KEYS, VALUES], b"", SDPA),
]


def _expected(line: str, inputs: list[Array], weights: bytes, result: Array) -> Array:
    """Computes the expected results of the cases with random stored operands."""
    if "5=1 6=1" in line:
        b = np.frombuffer(weights, "<f4", 42, 4).reshape(7, 6)
        return np.asarray(inputs[0] @ b.T + np.frombuffer(weights, "<f4", 7, 8 + 4 * 42))
    if "14=1" in line:
        y = inputs[0] @ inputs[1] + 2 * inputs[2].reshape(4, 1)
        return np.asarray(y.swapaxes(1, 2)[:, :, None])
    return result


@pytest.mark.parametrize(("line", "inputs", "weights", "result"), CASES, ids=[c[0].split()[0] for c in CASES])
def test_layers(line: str, inputs: list[Array], weights: bytes, result: Array) -> None:
    output = run(line, *inputs, weights=weights)
    np.testing.assert_allclose(output, _expected(line, inputs, weights, result), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("quantised", [False, True])
def test_attention_with_a_mask(quantised: bool) -> None:
    """Queries of 6 numbers, keys and values of 5; two heads of 4."""
    q, k, mask = rand(1, 3, 6), rand(1, 4, 5), rand(1, 3, 4)
    shapes = [(8, 6), (8, 5), (8, 5), (6, 8)]
    weights, biases = [rand(*s) for s in shapes], [rand(s[0]) for s in shapes]
    file = b""
    if quantised:
        scales = [127 / np.abs(w).max(1) for w in weights[:3]] + [np.array([127 / np.abs(weights[3]).max()])]
        small = [np.round(w * s[:, None]).astype(np.int8) for w, s in zip(weights, scales, strict=True)]
        for w, b in zip(small, biases, strict=True):
            raw = w.tobytes()
            file += struct.pack("<I", 0x000D4B38) + raw + bytes(-len(raw) % 4) + stored(b, plain=True)
        file += stored(*scales, plain=True)
        weights = [w / s[:, None] for w, s in zip(small, scales, strict=True)]
    else:
        file = b"".join(stored(w) + stored(b, plain=True) for w, b in zip(weights, biases, strict=True))
    line = f"MultiHeadAttention m 3 1 x0 x1 x2 y 0=8 1=2 2=48 3=5 4=5 5=1 18={2 * quantised}"
    output = run(line, q, k, mask, weights=file)
    heads = [
        (x @ w.T + b).reshape(1, -1, 2, 4).swapaxes(1, 2) for x, w, b in zip((q, k, k), weights, biases, strict=False)
    ]
    scores = heads[0] @ heads[1].swapaxes(2, 3) / 2 + mask[:, None]
    y = (softmax(scores) @ heads[2]).swapaxes(1, 2).reshape(1, 3, 8) @ weights[3].T + biases[3]
    np.testing.assert_allclose(output, y, atol=1e-4)


def test_attention_with_kv_cache() -> None:
    """The cached keys and values are transposed, as inputs and as outputs."""
    x, old = rand(1, 2, 4), [rand(1, 4, 3), rand(1, 4, 3)]
    weights, biases = [rand(4, 4) for _ in range(4)], [rand(4) for _ in range(4)]
    file = b"".join(stored(w) + stored(b, plain=True) for w, b in zip(weights, biases, strict=True))
    line = "MultiHeadAttention m 3 3 x0 x1 x2 y k v 0=4 1=1 2=16 7=1"
    y, keys, values = every(line, x, *old, weights=file)
    q, k, v = (x @ w.T + b for w, b in zip(weights[:3], biases[:3], strict=True))
    k, v = (np.concatenate([o.swapaxes(1, 2), n], 1) for o, n in zip(old, (k, v), strict=True))
    expected = softmax(q @ k.swapaxes(1, 2) / 2) @ v @ weights[3].T + biases[3]
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(keys, k.swapaxes(1, 2), atol=1e-5)
    np.testing.assert_allclose(values, v.swapaxes(1, 2), atol=1e-5)


def test_deformable_convolution() -> None:
    """Integer offsets select other pixels; masks weight them."""
    w, weights = rand(2, 4, 1, 1), b""
    weights = stored(w)
    offsets = np.zeros((1, 2, 6, 5), np.float32)
    offsets[0, 1] = 1
    factors = rand(1, 1, 6, 5)
    output = run("DeformableConv2D d 3 1 x0 x1 x2 y 0=2 1=1 6=8", X, offsets, factors, weights=weights)
    moved = np.pad(X, ((0, 0), (0, 0), (0, 0), (0, 1)))[..., 1:] * factors
    np.testing.assert_allclose(output, np.einsum("oc,nchw->nohw", w[:, :, 0, 0], moved), atol=1e-5)


def test_grid_sample_at_pixels() -> None:
    rows, columns = np.array([[0, 5, 2, 3]] * 3), np.array([[4, 0, 1, 2]] * 3)
    grid = np.stack([columns / 2 - 1, rows / 2.5 - 1], -1)[None].astype(np.float32)
    output = run("GridSample g 2 1 x0 x1 y 0=1 1=1 2=1", X, grid)
    np.testing.assert_allclose(output, X[:, :, rows, columns], atol=1e-5)
    turned_grid = np.ascontiguousarray(grid.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(run("GridSample g 2 1 x0 x1 y 0=2 1=2 2=1 3=1", X, turned_grid), output, atol=1e-5)


def test_roi_align_of_one_region() -> None:
    region = np.array([[0, 1, 3, 4]], np.float32)
    output = run("ROIPooling r 2 1 x0 x1 y 0=2 1=2 2=1.0", X, region)
    np.testing.assert_allclose(output, X[:, :, 1:5, :4].reshape(1, 4, 2, 2, 2, 2).max((3, 5)), atol=1e-6)
    output = run("ROIAlign r 2 1 x0 x1 y 0=1 1=1 2=1.0 3=1 4=1 5=1", X, np.array([[1, 2, 2, 3]], np.float32))
    np.testing.assert_allclose(output, X[:, :, 2:3, 1:2], atol=1e-6)
    output = run("PSROIPooling r 2 1 x0 x1 y 0=2 1=2 2=1.0 3=1", X, np.array([[0, 0, 3, 3]], np.float32))
    parts = [X[0, 2 * i + j, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean() for i in range(2) for j in range(2)]
    np.testing.assert_allclose(output.ravel(), parts, atol=1e-6)


def test_int8_of_recurrent_layers() -> None:
    """One scale per gate and unit, those of the input first."""
    w, b, r = rand(3, 8), rand(3), rand(3, 3)
    scales = [127 / np.abs(m).max(1) for m in (w, r)]
    small = [np.round(m * s[:, None]).astype(np.int8) for m, s in zip((w, r), scales, strict=True)]
    packed = [struct.pack("<I", 0x000D4B38) + m.tobytes() + bytes(-m.size % 4) for m in small]
    file = packed[0] + stored(b) + packed[1] + stored(*scales, plain=True)
    outputs = run("RNN r 1 1 x0 y 0=3 1=24 8=1", S, weights=file)
    w, r = (m / s[:, None] for m, s in zip(small, scales, strict=True))
    state, rows = np.zeros(3), []
    for x in S[0]:
        state = np.tanh(w @ x + b + r @ state)
        rows.append(state)
    np.testing.assert_allclose(outputs[0], rows, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ROIAlign r 2 1 data data y 0=2 1=2 2=1.0", "version 0"),
        ("Gemm g 1 1 data y 5=1 8=2 9=6 18=400", "blocks of 4"),
        ("SPP s 1 1 data y 1=20", "20 levels"),
        ("Reshape r 1 1 data y 0=6 1=5 2=3 12=233 13=2", "becomes the batch"),
        ("BinaryOp b 2 1 data data y 0=17", "op_type 17"),
        ("Diag d 1 1 data y", "no diagonal"),
        ("Fold f 1 1 data y 1=2 20=4", "does not fold"),
        ("Spectrogram s 1 1 data y 0=8 2=0", "not supported"),
        ("Gemm g 1 1 data y", "1 inputs"),
        ("MultiHeadAttention m 1 1 data y 0=4 1=3 2=16", "3 heads of 4"),
    ],
)
def test_refusals(line: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        importers.load(ncnn_net(line), weights=b"\0")
