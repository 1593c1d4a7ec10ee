"""Torch modules, exported and compared with torch itself; skipped where torch is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import difference, evaluate
from tenon.errors import InputError, UnsupportedError
from tenon.frontends.pytorch.export import is_torch

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
nn: Any = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch itself, whatever version is installed

MODULES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "image": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.Hardswish(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding="same", groups=4), nn.SiLU(), nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ConvTranspose2d(8, 6, 2, stride=2), nn.GroupNorm(3, 6), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(6, 5), nn.Softmax(-1),
        ),
        (1, 3, 16, 16),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True), (1, 7, 16)),
    "attention": (lambda: Attending(), (1, 5, 8)),
    "odds": (lambda: Odds(), (2, 4, 6)),
    "sequence": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.PReLU(4), nn.AvgPool1d(2), nn.ELU(), nn.Hardtanh()),
        (1, 3, 12),
    ),
}  # fmt: skip


class Attending(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return x + self.attention(x, x, x, need_weights=False)[0]


class Odds(nn.Module):  # type: ignore[misc]
    """What modules do between their layers."""

    def forward(self, x: Any) -> tuple[Any, ...]:
        a, b = x.chunk(2, dim=1)
        y = torch.cat([a * 2 - b / 3, 1 - a.pow(2)], 1).clamp(min=-0.5)
        z = torch.where(y > 0, y.sqrt(), torch.zeros_like(y))
        return (
            y[:, 1::2, -3:].transpose(1, 2), z.mean((1, 2)), x.var(-1), x.argmax(-1),
            torch.stack([a, b]).amax(0), nn.functional.pad(x, (1, 2), value=3.0),
            x[:, 0].unsqueeze(0).expand(3, -1, -1),
        )  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_like_torch(name: str) -> None:
    torch.manual_seed(3)
    make, shape = MODULES[name]
    module, x = make().eval(), torch.randn(shape)
    expected = module(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    graph = tenon.load(module, example_inputs=(x,))
    (port,) = graph.inputs
    found = list(evaluate(graph, {port.name: x.numpy()}).values())
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        assert difference(ours, theirs.detach().numpy()) < 1e-5


def test_compiled_from_an_exported_program() -> None:
    torch.manual_seed(3)
    make, shape = MODULES["image"]
    module, x = make().eval(), torch.randn(shape)
    program = torch.export.export(module, (x,))
    with tenon.open(tenon.compile(program)) as engine:
        (found,) = engine.run({next(iter(engine.inputs)): x.numpy()}).values()
    assert difference(found, module(x).detach().numpy()) < 1e-5


def test_arrays_as_examples_and_training_mode_is_kept() -> None:
    module = nn.Linear(3, 2).train()
    graph = tenon.load(module, example_inputs=(np.zeros((1, 3), np.float32),))
    assert module.training
    assert [str(v.type) for v in graph.outputs] == ["f32[1,2]"]


def test_refusals() -> None:
    with pytest.raises(InputError, match="example_inputs"):
        tenon.load(nn.ReLU())

    class Sorting(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.sort()[0] + x.histc(4)

    with pytest.raises(UnsupportedError) as found:
        tenon.load(Sorting(), example_inputs=(torch.zeros(4),))
    assert {"sort", "histc"} <= {p.where.split("(")[-1].strip(")") for p in found.value.problems}


def test_what_is_torch() -> None:
    assert is_torch(nn.ReLU())
    assert not is_torch("model.onnx")
