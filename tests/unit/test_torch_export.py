"""Torch modules, exported and compared with torch; skipped if torch is not installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import difference, evaluate
from tenon.errors import InputError, UnsupportedError
from tenon.formats.importers.pytorch import is_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
nn: Any = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of torch, of any version

MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "image": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, stride=2),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding="same", groups=4),
            nn.SiLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ConvTranspose2d(8, 6, 2, stride=2),
            nn.GroupNorm(3, 6),
            nn.LeakyReLU(0.2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 5),
            nn.Softmax(-1),
        ),
        (1, 3, 16, 16),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True), (1, 7, 16)),
    "attention": (lambda: Attention(), (1, 5, 8)),
    "odds": (lambda: BetweenLayers(), (2, 4, 6)),
    "sequence": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.PReLU(4), nn.AvgPool1d(2), nn.ELU(), nn.Hardtanh()),
        (1, 3, 12),
    ),
}


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return x + self.attention(x, x, x, need_weights=False)[0]


class BetweenLayers(nn.Module):  # type: ignore[misc]
    """Operations between layers."""

    def forward(self, x: Any) -> tuple[Any, ...]:
        a, b = x.chunk(2, dim=1)
        y = torch.cat([a * 2 - b / 3, 1 - a.pow(2)], 1).clamp(min=-0.5)
        z = torch.where(y > 0, y.sqrt(), torch.zeros_like(y))
        return (
            y[:, 1::2, -3:].transpose(1, 2),
            z.mean((1, 2)),
            x.var(-1),
            x.argmax(-1),
            torch.stack([a, b]).amax(0),
            nn.functional.pad(x, (1, 2), value=3.0),
            x[:, 0].unsqueeze(0).expand(3, -1, -1),
        )


class Parts(nn.Module):  # type: ignore[misc]
    """Elements gathered, scattered, sorted and written to."""

    def forward(self, x: Any) -> tuple[Any, ...]:
        y = x.clone()
        y[:, 1:3] = 7.0
        y[y < -0.5] = 0.0
        row = torch.arange(x.shape[1]).flip(0)
        values, indices = x.sort(-1, descending=True)
        return (
            y,
            x[:, row],
            x[:, row, row[:1]],
            values,
            indices,
            x.roll(2, 1),
            x.topk(2)[0],
            x.median(1)[0],
            x.std(0),
            x.gather(2, indices),
            torch.zeros_like(x).scatter(2, indices, values),
            x.unfold(2, 3, 2),
            x.tril(),
            torch.remainder(x, 0.7),
            x.fmod(0.7),
            torch.atan2(x, y),
            x.expm1(),
            x.abs().log1p(),
            x.max(1),
            x.cumsum(1),
        )


class Images(nn.Module):  # type: ignore[misc]
    """Image operations other than convolutions."""

    def forward(self, x: Any) -> tuple[Any, ...]:
        f = nn.functional
        y, indices = f.max_pool2d(x, 2, return_indices=True)
        turn = torch.tensor([[[0.8, -0.6, 0.1], [0.6, 0.8, -0.1]]])
        grid = f.affine_grid(turn, [1, 3, 5, 6], align_corners=False)
        return (
            indices,
            f.max_unpool2d(y, indices, 2),
            f.grid_sample(x, grid, align_corners=False),
            f.adaptive_avg_pool2d(x, (3, 5)),
            f.interpolate(x, scale_factor=1.3, mode="bilinear"),
            f.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
            f.fold(f.unfold(x, 2), (8, 10), 2),
            f.pixel_unshuffle(x, 2),
            f.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            f.scaled_dot_product_attention(x, x, x, is_causal=True),
            f.pad(x, (1, 2, 2, 1), mode="reflect"),
        )


class Repeats(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A loop of 40 iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        while_loop = importlib.import_module("torch._higher_order_ops").while_loop
        return while_loop(lambda i, y: i < 40, lambda i, y: (i + 1, torch.tanh(self.layer(y))), (torch.tensor(0), x))


class Decides(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A conditional in a conditional."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        def positive(x: Any) -> Any:
            return torch.cond(x.max() > 2, lambda x: x.sin(), lambda x: torch.tanh(self.layer(x)), (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: x * 2, (x,))


MODULES |= {
    "decides": (lambda: Decides(), (6, 4)),
    "repeats": (lambda: Repeats(), (6, 4)),
    "parts": (lambda: Parts(), (2, 5, 6)),
    "images": (lambda: Images(), (1, 3, 8, 10)),
    "lstm": (lambda: nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True), (2, 6, 5)),
    "gru": (lambda: nn.GRU(5, 7), (6, 2, 5)),
    "rnn": (lambda: nn.RNN(5, 7, nonlinearity="relu", bias=False), (6, 2, 5)),
}


def leaves(outputs: Any) -> list[Any]:
    """All tensors of nested tuples."""
    return [t for part in outputs for t in leaves(part)] if isinstance(outputs, tuple) else [outputs]


@pytest.mark.parametrize("name", MODULES)
def test_modules_match_torch(name: str) -> None:
    torch.manual_seed(3)
    make, shape = MODULES[name]
    module, x = make().eval(), torch.randn(shape)
    expected = leaves(module(x))
    graph = tenon.load(module, example_inputs=(x,))
    (port,) = graph.inputs
    outputs = list(evaluate(graph, {port.name: x.numpy()}).values())
    assert len(outputs) == len(expected)
    for ours, theirs in zip(outputs, expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        assert difference(ours, theirs.detach().numpy()) < 1e-5


def test_compiled_from_an_exported_program() -> None:
    torch.manual_seed(3)
    make, shape = MODULES["image"]
    module, x = make().eval(), torch.randn(shape)
    program = torch.export.export(module, (x,))
    with tenon.open(tenon.compile(program)) as engine:
        (output,) = engine.run({next(iter(engine.inputs)): x.numpy()}).values()
    assert difference(output, module(x).detach().numpy()) < 1e-5


def test_example_arrays_and_training_mode() -> None:
    module = nn.Linear(3, 2).train()
    graph = tenon.load(module, example_inputs=(np.zeros((1, 3), np.float32),))
    assert module.training
    assert [str(v.type) for v in graph.outputs] == ["f32[1,2]"]


def test_refusals() -> None:
    with pytest.raises(InputError, match="example_inputs"):
        tenon.load(nn.ReLU())

    class Odd(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.igamma(x) + x.histc(4)

    with pytest.raises(UnsupportedError) as error:
        tenon.load(Odd(), example_inputs=(torch.zeros(4),))
    assert {"igamma", "histc"} <= {p.where.split("(")[-1].strip(")") for p in error.value.problems}


@pytest.mark.parametrize("functional", [True, False])
def test_archives_need_no_torch(functional: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    make, shape = MODULES["image"]
    module, x = make().eval(), torch.randn(shape)
    program = torch.export.export(module, (x,))
    torch.export.save(program.run_decompositions() if functional else program, tmp_path / "net.pt2")
    graph = tenon.load(tmp_path / "net.pt2")
    (output,) = evaluate(graph, {graph.inputs[0].name: x.numpy()}).values()
    assert difference(output, module(x).detach().numpy()) < 1e-5


def test_dynamic_shapes() -> None:
    class Sum(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.sum(1)

    batch = torch.export.Dim("batch")
    program = torch.export.export(Sum(), (torch.zeros(2, 3),), dynamic_shapes=({0: batch},))
    with pytest.raises(UnsupportedError, match="give example_inputs"):
        tenon.load(program)
    graph = tenon.load(program, example_inputs=(torch.zeros(4, 3),))
    assert [str(v.type) for v in graph.outputs] == ["f32[4]"]


def test_recognition_of_torch_objects() -> None:
    assert is_torch(nn.ReLU())
    assert not is_torch("model.onnx")
