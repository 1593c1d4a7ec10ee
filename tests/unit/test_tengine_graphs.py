"""Graphs of Tengine's C API: built node by node, read from tmfiles, their nodes and tensors, plug-ins."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

import tenon
from libtenon import BUILDS, CLIENTS, needed, run, succeeded
from quantised_networks import CASES, images, network, quantised
from real import held_out_digits
from small_models import tmfile as layers_file
from tengine_sdk import MODEL, Tengine, built, environment_of, sdk_and_compiler
from tenon.compat.tengine import quant_tool
from tenon.formats.exporters.save import save
from tenon.formats.importers.tengine.file import read
from tenon.options import DataType

OPSET = helper.make_opsetid("", 17)
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")


@pytest.fixture(scope="module", params=BUILDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sdk_and_compiler(tmp_path_factory.mktemp("tengine"), request.param)


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    return environment_of(place)


@pytest.fixture(scope="module")
def tengine(place: Path, environment: dict[str, str]) -> Tengine:
    with pytest.MonkeyPatch.context() as patch:
        return Tengine(place, environment, patch)


@pytest.fixture(autouse=True)
def own_cache(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TENON", "TENON_CACHE", "TENON_NO_TUNING"):
        monkeypatch.setenv(name, environment[name])


@pytest.mark.parametrize(("what", "calls"), [("plain", "0 0 0 0 0 0"), ("between", "1 2 2 2 2 1")])
def test_graph_built_node_by_node(what: str, calls: str, place: Path, environment: dict[str, str]) -> None:
    """Some graphs have a node that the program computes, and a later one that reads results of two stages."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 2, 2, 3), (3, 2), (3, 1, 1)))
    program = place / "tengine_graph"
    if not program.exists():
        built(CLIENTS / "tengine_graph.c", place)
    conv = np.einsum("oc,ncyx->noyx", w, x) + b
    relu = np.where(conv < 0, conv / 2, conv)
    expected = relu * conv if what == "between" else relu
    done = run(program, what, stdin=x.tobytes() + w.tobytes() + b.tobytes(), env=environment)
    np.testing.assert_allclose(np.frombuffer(succeeded(done), np.float32), expected.ravel(), rtol=1e-5, atol=1e-6)
    said = done.stderr.decode()
    assert f"calls {calls}" in said
    assert "node: 0 op: ReLU name: relu" in said  # dump_graph


@pytest.fixture(scope="module")
def tmfile(place: Path) -> Path:
    save(tenon.load(MODEL), place / "digits.tmfile")
    return place / "digits.tmfile"


def test_tensors_inside_a_model(
    tmfile: Path, tengine: Tengine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes, weights, and the results of a layer in the middle, which TG_DEBUG_DATA writes to files too."""
    graph, image = tengine.created(tmfile), np.ascontiguousarray(held_out_digits()[0][0])
    nodes = [tengine.pointer("get_graph_node_by_idx", graph, i) for i in range(tengine("get_graph_node_num", graph))]
    ops = [ctypes.string_at(tengine.pointer("get_node_op", node).value or 0).decode() for node in nodes]
    assert {"InputOp", "Const", "Convolution"} <= set(ops)
    conv = nodes[ops.index("Convolution")]
    weights = tengine.pointer("get_node_input_tensor", conv, 1)
    inside = tengine.pointer("get_node_output_tensor", conv, 0)
    name = ctypes.string_at(tengine.pointer("get_tensor_name", inside).value or 0).decode()
    assert tengine.pointer("get_graph_tensor", graph, name.encode()).value == inside.value
    first = tengine.pointer("get_graph_input_tensor", graph, 0, 0)
    assert tengine("set_tensor_buffer", first, image.ctypes.data_as(ctypes.c_void_p), image.nbytes) == 0
    assert tengine.pointer("get_tensor_buffer", weights).value
    assert tengine("prerun_graph", graph) == 0, tengine.messages
    monkeypatch.setenv("TG_DEBUG_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("TG_DEBUG_DATA", "1")
    assert tengine("run_graph", graph, 1) == 0
    size = tengine("get_tensor_buffer_size", inside)
    values = np.frombuffer(ctypes.string_at(tengine.pointer("get_tensor_buffer", inside).value or 0, size), np.float32)
    with tenon.open(tenon.compile(tenon.load(tmfile, outputs=[name]), no_tuning=True)) as engine:
        (expected,) = engine.run(image).values()
    np.testing.assert_allclose(values, expected.ravel(), rtol=1e-4, atol=1e-5)
    blobs = [path.read_text() for path in tmp_path.glob("*_out_blob_data.txt")]
    assert any(f"{values[0]:.6f}" in text for text in blobs)
    assert tengine("postrun_graph", graph) == 0
    assert tengine("destroy_graph", graph) == 0


def test_quantised_model_takes_its_integers(tengine: Tengine, place: Path) -> None:
    """Inputs and outputs of a quantised tmfile have its type, scale and zero point, as in Tengine."""
    path = place / "bytes.tmfile"
    save(quantised(network(CASES["relu"]), "uint8"), path)
    graph, (image, *_) = tengine.created(path), images()
    first, last = (
        tengine.pointer("get_graph_input_tensor", graph, 0, 0),
        tengine.pointer("get_graph_output_tensor", graph, 0, 0),
    )
    scale, zero = (ctypes.c_float * 1)(), (ctypes.c_int * 1)()
    assert tengine("get_tensor_data_type", first) == 3
    assert tengine("get_tensor_quant_param", first, scale, zero, 1) == 1
    stored = np.clip(np.rint(image / scale[0]) + zero[0], 0, 255).astype(np.uint8)
    assert tengine("set_tensor_buffer", first, stored.ctypes.data_as(ctypes.c_void_p), stored.nbytes) == 0
    assert tengine("prerun_graph", graph) == 0, tengine.messages
    assert tengine("run_graph", graph, 1) == 0
    assert tengine("get_tensor_data_type", last) == 3
    size = tengine("get_tensor_buffer_size", last)
    values = np.frombuffer(ctypes.string_at(tengine.pointer("get_tensor_buffer", last).value or 0, size), np.uint8)
    types: dict[str, DataType] = dict.fromkeys(("x", tenon.load(path).outputs[0].name), "quantized")
    with tenon.open(tenon.compile(path, no_tuning=True, data_types=types)) as engine:
        (expected,) = engine.run(stored).values()
    np.testing.assert_array_equal(values, expected.ravel())
    assert np.ptp(values) > 10
    assert tengine("destroy_graph", graph) == 0


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_program_reads_the_integers_of_what_quant_tool_writes(
    kind: str, place: Path, environment: dict[str, str], tmfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A classifier that ends in a softmax, in the manner of Tengine's examples for int8 and uint8."""
    monkeypatch.chdir(tmp_path)
    images, labels = held_out_digits()
    (tmp_path / "images").mkdir()
    for i, image in enumerate(images[100:140]):
        Image.fromarray(image.reshape(8, 8).astype(np.uint8)).save(f"images/{i}.png")
    words = ["-m", str(tmfile), "-i", "images", "-o", "out.tmfile", "-g", "1,8,8", "-w", "0", "-s", "1", "-t", "1"]
    quant_tool.run(quant_tool.INT8 if kind == "int8" else quant_tool.UINT8, quant_tool.parse(words))
    program, model = place / "tengine_bytes", tenon.load("out.tmfile")
    if not program.exists():
        built(CLIENTS / "tengine_bytes.c", place, "-lm")
    types: dict[str, DataType] = dict.fromkeys((model.inputs[0].name, model.outputs[0].name), "quantized")
    grids = {t.name: t.quant for t in read((tmp_path / "out.tmfile").read_bytes()).tensors}
    given, made = (grids[name] for name in types)
    assert given is not None
    assert made is not None
    least, most, dtype = (-127, 127, np.int8) if kind == "int8" else (0, 255, np.uint8)
    with tenon.open(tenon.compile("out.tmfile", no_tuning=True, data_types=types)) as engine:
        for image, label in zip(images[2:8], labels[2:8], strict=True):
            done = run(program, "out.tmfile", kind, *map(str, image.shape), stdin=image.tobytes(), env=environment)
            printed = succeeded(done)
            steps = np.floor(image / np.float32(given.scale[0]) + np.float32(given.zero_point[0]) + np.float32(0.5))
            (expected,) = engine.run(np.clip(steps, least, most).astype(dtype)).values()
            assert printed[:10] == expected.tobytes()
            real = np.frombuffer(printed[10:], np.float32)
            scaled = (expected.ravel().astype(np.float32) - made.zero_point[0]) * np.float32(made.scale[0])
            np.testing.assert_array_equal(real, scaled)
            assert 0.9 < real.sum() < 1.1
            assert real.argmax() == label  # as in float


def test_weights_that_a_file_does_not_hold(tengine: Tengine, tmfile: Path) -> None:
    """As in Tengine's benchmark models: the network runs on made-up ones."""
    data = bytearray(tmfile.read_bytes())
    at = buffers_of(data)
    for store in at:
        data[store + 4 : store + 8] = bytes(4)
    graph = tengine.pointer("create_graph", None, b"tengine:m", bytes(data), len(data))
    assert graph.value, tengine.messages
    assert tengine("prerun_graph", graph) == 0, tengine.messages
    assert tengine("run_graph", graph, 1) == 0
    last = tengine.pointer("get_graph_output_tensor", graph, 0, 0)
    size = tengine("get_tensor_buffer_size", last)
    values = np.frombuffer(ctypes.string_at(tengine.pointer("get_tensor_buffer", last).value or 0, size), np.float32)
    assert np.isfinite(values).all()
    assert tengine("destroy_graph", graph) == 0


def buffers_of(data: bytes | bytearray) -> list[int]:
    """Where a tmfile's records of buffers are: their size, then their offset."""

    def word(at: int) -> int:
        return int.from_bytes(data[at : at + 4], "little")

    graphs = word(word(8) + 8)
    vector = word(word(graphs + 4) + 28)
    return [word(vector + 4 + 4 * i) for i in range(word(vector))]


def test_damaged_tmfiles_are_refused_or_read(tengine: Tengine, tmfile: Path) -> None:
    """Every word of the tables replaced in turn: no crash, and a message for what is refused."""
    data, rng, refused = tmfile.read_bytes(), np.random.default_rng(0), 0
    begin = max(
        int.from_bytes(data[at : at + 4], "little") + int.from_bytes(data[at + 4 : at + 8], "little")
        for at in buffers_of(data)
    )
    for _ in range(400):
        damaged = bytearray(data)
        at = (
            int(rng.integers(8, len(data) // 4)) * 4
            if rng.random() < 0.2
            else int(rng.integers(begin // 4, len(data) // 4)) * 4
        )
        damaged[at : at + 4] = int(
            rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(data), int(rng.integers(0, 2**32))])
        ).to_bytes(4, "little")
        tengine.messages.clear()
        graph = tengine.pointer("create_graph", None, b"tengine:m", bytes(damaged), len(damaged))
        if graph.value:
            assert tengine("destroy_graph", graph) == 0
        else:
            refused += 1
            assert tengine.messages
    assert refused > 50


PLUGIN = """
static int number;
int begin(void) { return number++ == 0 ? 0 : -1; }
int end(void) { return 0; }
int broken(void) { return -1; }
"""


def test_plugins(tengine: Tengine, tmp_path: Path) -> None:
    (tmp_path / "plugin.c").write_text(PLUGIN)
    path = tmp_path / "plugin.so"
    succeeded(run(needed("gcc"), "-shared", "-fPIC", tmp_path / "plugin.c", "-o", path))
    load, name = str(path).encode(), b"mine"
    assert tengine("load_tengine_plugin", name, load, b"broken") == -1
    assert tengine("load_tengine_plugin", name, load, b"nothing") == -1
    assert "no function nothing" in tengine.messages[-1]
    assert tengine("load_tengine_plugin", name, load, b"begin") == 0
    assert tengine("load_tengine_plugin", name, load, b"begin") == -1
    assert "mine already" in tengine.messages[-1]
    assert tengine("get_tengine_plugin_number") == 1
    assert ctypes.string_at(tengine.pointer("get_tengine_plugin_name", 0).value or 0) == name
    assert not tengine.pointer("get_tengine_plugin_name", 1).value
    assert tengine("unload_tengine_plugin", name, b"end") == 0
    assert tengine("get_tengine_plugin_number") == 0


def test_another_rank_than_the_file_has(tengine: Tengine, tmfile: Path) -> None:
    """A program that sets the shape of a 3-dimensional input to four dimensions."""
    node = helper.make_node("Relu", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 4, 5]) for name in "xy"]
    made = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]), opset_imports=[OPSET])
    path = tmfile.with_name("relu.tmfile")
    save(tenon.load(made.SerializeToString()), path)
    (tmfile.with_name("relu.onnx")).write_bytes(made.SerializeToString())
    x = np.random.default_rng(0).normal(size=(1, 3, 4, 5)).astype(np.float32)
    for model, rank in ((path, 4), (path.with_suffix(".onnx"), 3)):
        graph = tengine.created(model)
        first = tengine.pointer("get_graph_input_tensor", graph, 0, 0)
        assert tengine("set_tensor_shape", first, (ctypes.c_int * 4)(*x.shape), 4) == 0
        assert tengine("set_tensor_buffer", first, x.ctypes.data_as(ctypes.c_void_p), x.nbytes) == 0
        assert tengine("prerun_graph", graph) == 0, tengine.messages
        assert tengine("run_graph", graph, 1) == 0
        last = tengine.pointer("get_graph_output_tensor", graph, 0, 0)
        assert tengine("get_tensor_shape", last, (ctypes.c_int * 8)(), 8) == rank
        content = ctypes.string_at(tengine.pointer("get_tensor_buffer", last).value or 0, x.nbytes)
        assert content == np.maximum(x, 0).tobytes()
        assert tengine("destroy_graph", graph) == 0


def test_types_that_tengine_lacks(tengine: Tengine, tmp_path: Path) -> None:
    """Tengine's programs hand over FP32 for f64 and bool, and INT32 for int64."""
    nodes = [helper.make_node("And", ["a", "b"], ["both"]), helper.make_node("Gather", ["d", "i"], ["found"])]
    kinds = {"a": TensorProto.BOOL, "b": TensorProto.BOOL, "d": TensorProto.DOUBLE, "i": TensorProto.INT64}
    ports = [helper.make_tensor_value_info(name, kind, [4]) for name, kind in kinds.items()]
    ends = [helper.make_tensor_value_info("both", TensorProto.BOOL, [4])]
    ends.append(helper.make_tensor_value_info("found", TensorProto.DOUBLE, [4]))
    made = helper.make_model(helper.make_graph(nodes, "g", ports, ends), opset_imports=[OPSET])
    (tmp_path / "types.onnx").write_bytes(made.SerializeToString())
    graph = tengine.created(tmp_path / "types.onnx")
    given = [
        np.array([0, 0, 1, 1], np.float32),
        np.array([0, 1, 0, 1], np.float32),
        np.array([0.5, 1.5, 2.5, 3.5], np.float32),
        np.array([3, 0, 1, 1], np.int32),
    ]
    for number, array in enumerate(given):
        tensor = tengine.pointer("get_graph_input_tensor", graph, number, 0)
        assert tengine("get_tensor_data_type", tensor) == (4 if array.dtype == np.int32 else 0)
        assert tengine("set_tensor_buffer", tensor, array.ctypes.data_as(ctypes.c_void_p), array.nbytes) == 0
    assert tengine("prerun_graph", graph) == 0, tengine.messages
    assert tengine("run_graph", graph, 1) == 0
    for number, expected in enumerate(([0, 0, 0, 1], [3.5, 0.5, 1.5, 1.5])):
        last = tengine.pointer("get_graph_output_tensor", graph, number, 0)
        assert tengine("get_tensor_data_type", last) == 0
        content = ctypes.string_at(tengine.pointer("get_tensor_buffer", last).value or 0, 16)
        np.testing.assert_array_equal(np.frombuffer(content, np.float32), expected)
    assert tengine("destroy_graph", graph) == 0


def test_products_of_images_keep_their_rank(tengine: Tengine, tmp_path: Path) -> None:
    """FullyConnected of an image gives [N, K, 1, 1], as in Tengine: pytengine's getNumpyData needs four dimensions."""
    x = np.random.default_rng(0).normal(size=(2, 3, 1, 2)).astype(np.float32)
    weights = np.arange(24, dtype=np.float32).reshape(4, 6) / 24
    path = tmp_path / "product.tmfile"
    path.write_bytes(layers_file(11, [4], weights, shape=x.shape))
    graph = tengine.created(path)
    first, last = (tengine.pointer(f"get_graph_{end}put_tensor", graph, 0, 0) for end in ("in", "out"))
    assert tengine("set_tensor_buffer", first, x.ctypes.data_as(ctypes.c_void_p), x.nbytes) == 0
    assert tengine("prerun_graph", graph) == 0, tengine.messages
    assert tengine("run_graph", graph, 1) == 0
    assert tengine("get_tensor_shape", last, tengine.room, 4) == 4
    assert list(tengine.room[:4]) == [2, 4, 1, 1]
    values = np.frombuffer(ctypes.string_at(tengine.pointer("get_tensor_buffer", last).value or 0, 32), np.float32)
    np.testing.assert_allclose(values.reshape(2, 4), x.reshape(2, 6) @ weights.T, rtol=1e-5)
    assert tengine("destroy_graph", graph) == 0
