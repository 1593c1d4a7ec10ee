#!/usr/bin/env python3
"""Train the handwritten-digit network of the demo and write it as ONNX.

    pip install '.[digits]'
    python examples/digits/train.py            # some seconds; writes digits.onnx, held_out.png, held_out.txt here

The data are the 1797 digits of 8x8 pixels that scikit-learn carries (UCI "Optical Recognition of Handwritten
Digits").  Every fifth image is held out and never trained on; those go into held_out.png, a sheet of 18 columns,
with their labels in held_out.txt.  The network is two 3x3 convolutions and a fully connected layer, trained by
Adam (Kingma and Ba, 2015) on images shifted by up to one pixel.  Gradients are written out by hand in NumPy, so
that nothing but NumPy and scikit-learn is needed and every machine gets the same file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
COLUMNS = 18
Array = np.ndarray


def load_digits() -> tuple[Array, Array, Array, Array]:
    """(training images, labels, held-out images, labels); images are [n, 1, 8, 8], 0..255."""
    from sklearn.datasets import load_digits as digits

    data = digits()
    images = np.round(data.images * (255 / 16)).astype(np.float32)[:, None]
    held = np.arange(len(images)) % 5 == 0
    return images[~held], data.target[~held], images[held], data.target[held]


class Conv:
    """3x3, padding 1; [out, in, 3, 3]."""

    def __init__(self, rng: np.random.Generator, cin: int, cout: int, stride: int) -> None:
        scale = np.sqrt(2 / (cin * 9))
        self.w = (rng.standard_normal((cout, cin, 3, 3)) * scale).astype(np.float32)
        self.b = np.zeros(cout, np.float32)
        self.stride = stride

    def forward(self, x: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        self.windows = windows[:, :, :: self.stride, :: self.stride]
        self.shape = x.shape
        return np.einsum("ncyxij,ocij->noyx", self.windows, self.w, optimize=True) + self.b[:, None, None]

    def backward(self, g: Array) -> tuple[Array, list[Array]]:
        gw = np.einsum("noyx,ncyxij->ocij", g, self.windows, optimize=True)
        n, c, h, w = self.shape
        gx = np.zeros((n, c, h + 2, w + 2), np.float32)
        s, (oh, ow) = self.stride, g.shape[2:]
        for i in range(3):
            for j in range(3):
                part = np.einsum("noyx,oc->ncyx", g, self.w[:, :, i, j], optimize=True)
                gx[:, :, i : i + s * oh : s, j : j + s * ow : s] += part
        return gx[:, :, 1:-1, 1:-1], [gw, g.sum((0, 2, 3))]


class Dense:
    """[out, in]."""

    def __init__(self, rng: np.random.Generator, cin: int, cout: int) -> None:
        self.w = (rng.standard_normal((cout, cin)) * np.sqrt(2 / cin)).astype(np.float32)
        self.b = np.zeros(cout, np.float32)

    def forward(self, x: Array) -> Array:
        self.shape, self.x = x.shape, x.reshape(len(x), -1)
        return self.x @ self.w.T + self.b

    def backward(self, g: Array) -> tuple[Array, list[Array]]:
        return (g @ self.w).reshape(self.shape), [g.T @ self.x, g.sum(0)]


class Relu:
    def forward(self, x: Array) -> Array:
        self.on = x > 0
        return x * self.on

    def backward(self, g: Array) -> tuple[Array, list[Array]]:
        return g * self.on, []


def network(rng: np.random.Generator) -> list[Conv | Dense | Relu]:
    return [Conv(rng, 1, 12, 1), Relu(), Conv(rng, 12, 24, 2), Relu(), Dense(rng, 24 * 16, 10)]


def predict(layers: list[Conv | Dense | Relu], images: Array) -> Array:
    x = images / np.float32(255)
    for layer in layers:
        x = layer.forward(x)
    return x


def shifted(rng: np.random.Generator, images: Array) -> Array:
    """Each image shifted by -1, 0 or 1 pixels along each axis."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    at = rng.integers(0, 3, (len(images), 2))
    return np.stack([p[:, y : y + 8, x : x + 8] for p, (y, x) in zip(padded, at, strict=True)])


def train(images: Array, labels: Array, epochs: int = 60, batch: int = 64) -> list[Conv | Dense | Relu]:
    rng = np.random.default_rng(0)
    layers = network(rng)
    moments: dict[tuple[int, int], tuple[Array, Array]] = {}
    step = 0
    for epoch in range(epochs):
        rate = 2e-3 * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        order = rng.permutation(len(images))
        for start in range(0, len(order) - batch + 1, batch):
            chosen = order[start : start + batch]
            logits = predict(layers, shifted(rng, images[chosen]))
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(batch), labels[chosen]] -= 1
            grad, step = (p / batch).astype(np.float32), step + 1
            for i, layer in reversed(list(enumerate(layers))):
                grad, found = layer.backward(grad)
                for j, g in enumerate(found):
                    adam(layer, i, j, g, moments, rate, step)
    return layers


def adam(layer: object, i: int, j: int, g: Array, moments: dict[tuple[int, int], tuple[Array, Array]],
         rate: float, step: int) -> None:  # fmt: skip
    name = "wb"[j]
    m, v = moments.get((i, j), (np.zeros_like(g), np.zeros_like(g)))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    moments[i, j] = m, v
    change = rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    setattr(layer, name, (getattr(layer, name) - change).astype(np.float32))


def export(layers: list[Conv | Dense | Relu], path: Path) -> None:
    """Write the network, input 0..255, output ten probabilities."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights, nodes, value = [], [helper.make_node("Mul", ["image", "scale"], ["scaled"])], "scaled"
    weights.append(numpy_helper.from_array(np.float32(1 / 255), "scale"))
    for i, layer in enumerate(layers):
        if isinstance(layer, Relu):
            nodes.append(helper.make_node("Relu", [value], [f"relu{i}"]))
            value = f"relu{i}"
            continue
        w, b = f"w{i}", f"b{i}"
        weights += [numpy_helper.from_array(layer.w, w), numpy_helper.from_array(layer.b, b)]
        if isinstance(layer, Conv):
            strides = [layer.stride] * 2
            nodes.append(
                helper.make_node(
                    "Conv", [value, w, b], [f"conv{i}"], kernel_shape=[3, 3], pads=[1] * 4, strides=strides
                )
            )
            value = f"conv{i}"
        else:
            nodes.append(helper.make_node("Flatten", [value], ["flat"]))
            nodes.append(helper.make_node("Gemm", ["flat", w, b], ["logits"], transB=1))
            nodes.append(helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="tenon examples")
    model.ir_version = 8
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def write_sheet(images: Array, labels: Array) -> None:
    """held_out.png: the images side by side; held_out.txt: their labels, row by row."""
    from PIL import Image

    rows = len(images) // COLUMNS
    sheet = (
        images[: rows * COLUMNS, 0].reshape(rows, COLUMNS, 8, 8).transpose(0, 2, 1, 3).reshape(rows * 8, COLUMNS * 8)
    )
    Image.fromarray(sheet.astype(np.uint8)).save(HERE / "held_out.png", optimize=True)
    lines = ["".join(map(str, row)) for row in labels[: rows * COLUMNS].reshape(rows, COLUMNS)]
    (HERE / "held_out.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    images, labels, held, held_labels = load_digits()
    layers = train(images, labels)
    right = (predict(layers, held).argmax(1) == held_labels).mean()
    print(f"{100 * right:.1f} % of {len(held)} held-out digits are right")
    export(layers, HERE / "digits.onnx")
    write_sheet(held, held_labels)


if __name__ == "__main__":
    main()
