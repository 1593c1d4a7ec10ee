"""Tengine's C API over libtenon: programs in its manner, layout of its structs, misuse."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from libtenon import BUILDS, CLIENTS, checked, needed, needs_plain_build, run, succeeded
from real import held_out_digits
from tengine_sdk import MODEL, Tengine, built, environment_of, linked, sdk_and_compiler, small_bundle
from tenon.runtime.sdk.libtenon import RUNTIME

MNIST = Path(__file__).parents[3] / "shared" / "models"
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")


@pytest.fixture(scope="module", params=BUILDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sdk_and_compiler(tmp_path_factory.mktemp("tengine"), request.param)


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    return environment_of(place)


@pytest.fixture(scope="module")
def classify(place: Path) -> Path:
    return built(CLIENTS / "tengine_classify.c", place)


@pytest.mark.parametrize(("source", "count"), [("file", 1), ("file", 3), ("memory", 1)])
def test_program_gives_the_answer_of_python(
    source: str, count: int, classify: Path, environment: dict[str, str]
) -> None:
    images = np.ascontiguousarray(np.stack([image.reshape(1, 8, 8) for image in held_out_digits()[0][:count]]))
    with tenon.open(tenon.compile(MODEL, no_tuning=True, shapes={"image": images.shape})) as engine:
        (expected,) = engine.run(images).values()
    done = run(classify, MODEL, source, *map(str, images.shape), stdin=images.tobytes(), env=environment)
    assert succeeded(done) == expected.tobytes()
    assert "tengine-lite library version: 1.5-dev" in done.stderr.decode()


def test_graphs_in_several_threads(place: Path, environment: dict[str, str]) -> None:
    with tenon.open(tenon.compile(MODEL, no_tuning=True)) as engine:
        (expected,) = engine.run(held_out_digits()[0][0]).values()
    program = built(CLIENTS / "tengine_threads.c", place, "-lpthread")
    done = run(program, MODEL, "4", stdin=held_out_digits()[0][0].tobytes(), env=environment)
    assert succeeded(done) == expected.tobytes()


def test_cpp_api(place: Path, environment: dict[str, str]) -> None:
    sdk, program, image = place / "sdk", place / "net", held_out_digits()[0][0]
    flags = linked(sdk)
    strict = ("-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror")
    succeeded(run(needed("g++"), *strict, CLIENTS / "tengine_net.cpp", *flags, "-o", program))
    with tenon.open(tenon.compile(MODEL, no_tuning=True)) as engine:
        (expected,) = engine.run(image).values()
    done = run(checked(program, sdk), MODEL, stdin=image.tobytes(), env=environment)
    assert succeeded(done) == expected.tobytes()


def test_program_of_the_documentation(place: Path, environment: dict[str, str], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "from-tengine.md").read_text()
    (tmp_path / "program.c").write_text(page.split("```c\n")[1].split("```")[0])
    sdk, image = place / "sdk", held_out_digits()[0][0]
    flags = linked(sdk)
    succeeded(run(needed("gcc"), tmp_path / "program.c", *flags, "-o", tmp_path / "program"))
    bundle = tenon.compile(MODEL, no_tuning=True)
    path = bundle.save(tmp_path / "digits.tenon")
    with tenon.open(path) as engine:
        (expected,) = engine.run(image).values()
    without = {**environment, "TENON": "/no/such/compiler"}
    done = run(checked(tmp_path / "program", sdk), path, stdin=image.tobytes(), env=without)
    assert succeeded(done) == expected.tobytes()


def test_tmfile(classify: Path, environment: dict[str, str]) -> None:
    models = sorted((MNIST / "tmfile" / "mnist").glob("*.tmfile"))
    if not models:
        pytest.skip("the collection of real models is not there")
    photos = sorted((MNIST / "images" / "mnist").glob("*.png"))
    for photo in photos[::3]:
        with Image.open(photo) as image:
            pixels = np.asarray(image.convert("L").resize((28, 28)), np.float32)
        done = run(classify, models[0], "file", "1", "1", "28", "28", stdin=pixels.tobytes(), env=environment)
        assert int(np.argmax(np.frombuffer(succeeded(done), np.float32))) == int(photo.name[0])


def test_functions_that_programs_seldom_call(place: Path, environment: dict[str, str], tmp_path: Path) -> None:
    path = tenon.compile(MODEL, no_tuning=True).save(tmp_path / "digits.tenon")
    without = {**environment, "TENON": "/no/such/compiler"}
    succeeded(run(built(CLIENTS / "tengine_functions.c", place), path, env=without))


DECLARATION = re.compile(r"^DLLEXPORT (.*?)(\w+)\((.*?)\);", re.MULTILINE | re.DOTALL)
HEADER = RUNTIME / "include" / "tengine" / "c_api.h"
FUNCTIONS = {name: (result.strip(), arguments) for result, name, arguments in DECLARATION.findall(HEADER.read_text())}
"""The functions of the header: what each returns, and its parameters."""


def test_every_function_is_called_by_a_client() -> None:
    clients = "".join(path.read_text() for path in CLIENTS.glob("tengine_*.c*"))
    clients += "".join(path.read_text() for path in Path(__file__).parent.glob("test_tengine_*.py"))
    assert len(FUNCTIONS) == 91
    assert not [name for name in FUNCTIONS if not re.search(rf"\b{name}\b[\"(]", clients)]


def test_every_function_is_exported(place: Path) -> None:
    needs_plain_build(place / "sdk", "they export symbols of their own")
    library = place / "sdk" / "lib" / "libtengine-lite.so"
    listed = succeeded(run(needed("nm"), "-D", "--defined-only", library)).decode()
    assert {line.split()[-1] for line in listed.splitlines()} == set(FUNCTIONS)
    both = library.stat().st_size + (place / "sdk" / "lib" / "libtenon.so").stat().st_size
    # 8 kB are for GPUs, their options, and devices of single nodes, 4 kB for sizes and states, 1 kB for processors,
    # 52 kB for texts by language models, grammars, JSON schemas with patterns and batches, 10 kB for speech
    assert both < 231_000


STRUCTS = {  # of each: its size, and the offsets of its fields
    "options": (24, {"num_thread": 0, "cluster": 4, "precision": 8, "affinity": 16}),
    "custom_kernel_tensor": (
        112,
        {
            "dim": 0,
            "dim_num": 32,
            "element_num": 36,
            "element_size": 40,
            "data_type": 44,
            "dev_type": 48,
            "layout_type": 52,
            "quant_type": 56,
            "scale": 64,
            "zero_point": 72,
            "data": 88,
            "dev_mem": 96,
            "mapped_mem": 104,
        },
    ),
    "custom_kernel_ops": (
        104,
        {
            "kernel_name": 0,
            "op": 8,
            "force": 16,
            "kernel_param": 24,
            "kernel_param_size": 32,
            "infer_shape": 40,
            "inplace_info": 48,
            "bind": 56,
            "prerun": 64,
            "reshape": 72,
            "run": 80,
            "postrun": 88,
            "release": 96,
        },
    ),
}
"""As programs that were compiled with Tengine's own header have them, on machines of 64 bits."""


def test_layout_of_structs(place: Path, tmp_path: Path) -> None:
    """Asserted when the program is compiled."""
    sizes = [("MAX_SHAPE_DIM_NUM", 8), ("LOG_DEBUG", 7), ("TENGINE_CLUSTER_LITTLE", 3), ("GRAPH_STAT_ERROR", 4)]
    for name, (size, offsets) in STRUCTS.items():
        sizes.append((f"sizeof(struct {name})", size))
        sizes += [(f"offsetof(struct {name}, {field})", offset) for field, offset in offsets.items()]
    checks = "".join(f"typedef char check_{i}[({what}) == {size} ? 1 : -1];\n" for i, (what, size) in enumerate(sizes))
    (tmp_path / "sizes.c").write_text(f'#include <stddef.h>\n#include "tengine_c_api.h"\n{checks}')
    flags = ("-fsyntax-only", f"-I{place}/sdk/include")
    succeeded(run(needed("gcc"), "-std=c99", *flags, tmp_path / "sizes.c"))
    succeeded(run(needed("g++"), *flags, tmp_path / "sizes.c"))


# ------------------------------------------------------------------------------------------------ misuse
@pytest.fixture(scope="module")
def tengine(place: Path, environment: dict[str, str]) -> Tengine:
    with pytest.MonkeyPatch.context() as patch:
        return Tengine(place, environment, patch)


MISUSE: list[tuple[str, str, Callable[[Tengine], int]]] = [
    # what is wrong, a part of the message ("": none is printed), a call that gives -1
    ("NULL graph, run", "graph is NULL", lambda t: t("run_graph", None, 1)),
    ("destroyed graph, run", "destroyed", lambda t: t("run_graph", t.ended, 1)),
    ("destroyed graph, prerun", "destroyed", lambda t: t("prerun_graph", t.ended)),
    ("destroyed twice", "destroyed", lambda t: t("destroy_graph", t.ended)),
    ("tensor of a destroyed graph", "destroyed", lambda t: t("get_tensor_shape", t.ended_input, t.room, 8)),
    ("graph for tensor", "not of this kind (tensor)", lambda t: t("get_tensor_buffer_size", t.graph)),
    ("tensor for graph", "not of this kind (graph)", lambda t: t("run_graph", t.input, 1)),
    ("run before prerun", "prerun_graph comes first", lambda t: t("run_graph", t.graph, 1)),
    ("postrun before prerun", "not prepared", lambda t: t("postrun_graph", t.graph)),
    ("buffer of a wrong size", "255 bytes", lambda t: t("set_tensor_buffer", t.input, t.room, 255)),
    ("no buffer", "", lambda t: t("set_tensor_buffer", t.input, None, 256)),
    ("no dimensions", "", lambda t: t("set_tensor_shape", t.input, None, 4)),
    ("too many dimensions", "", lambda t: t("set_tensor_shape", t.input, t.room, 9)),
    ("a dimension of 0", "[0, ...]", lambda t: t("set_tensor_shape", t.input, (ctypes.c_int * 4)(), 4)),
    ("too short an array", "", lambda t: t("get_tensor_shape", t.input, t.room, 3)),
    ("no data before prerun", "", lambda t: t("get_tensor_data", t.input, t.room, 4096)),
    ("another type", "keeps the type", lambda t: t("set_tensor_data_type", t.input, 3)),
    ("unknown device", "no device 'ACL'", lambda t: t("set_graph_device", t.graph, b"ACL")),
    ("wait", "", lambda t: t("wait_graph", t.graph, 0)),
    ("errno", "", lambda t: t("get_tengine_errno")),
    ("attribute of a graph", "", lambda t: t("set_graph_attr", t.graph, b"x", None, 0)),
    ("a custom kernel of no node", "node is NULL", lambda t: t("set_custom_kernel", None, b"CPU", None)),
    ("a custom kernel without functions", "run among them", lambda t: t("set_custom_kernel", t.relu, b"CPU", None)),
    ("no custom kernel to remove", "no custom kernel", lambda t: t("remove_custom_kernel", t.relu, b"CPU")),
    ("a plug-in that is not there", "cannot be loaded", lambda t: t("load_tengine_plugin", b"x", b"x.so", b"init")),
    ("a plug-in without a name", "NULL", lambda t: t("load_tengine_plugin", None, b"x.so", None)),
    ("an unknown plug-in", "no plug-in x", lambda t: t("unload_tengine_plugin", b"x", None)),
    ("an unknown event", "no event 9", lambda t: t("set_graph_event_hook", t.graph, 9, None, None)),
    ("an unknown attribute", "no attribute 'x': it has slope", lambda t: t("set_node_attr_int", t.relu, b"x", t.room)),
    ("an int for a float", "is a float", lambda t: t("set_node_attr_int", t.relu, b"slope", t.room)),
    ("no value", "value is NULL", lambda t: t("get_node_attr_float", t.relu, b"slope", None)),
    ("an attribute of 3 bytes", "3 bytes", lambda t: t("set_node_attr_generic", t.relu, b"slope", b"f", t.room, 3)),
    ("an input behind a gap", "leaves a gap", lambda t: t("set_node_input_tensor", t.relu, 2, t.loose)),
    ("tensors of another graph", "different graphs", lambda t: t("set_node_input_tensor", t.relu, 0, t.input)),
    ("no type of tensor", "no tensor type 7", lambda t: t("set_node_output_tensor", t.relu, 0, t.loose, 7)),
    ("an unknown node", "no node 'x'", lambda t: t("set_graph_input_node", t.empty, (ctypes.c_char_p * 1)(b"x"), 1)),
    (
        "inputs of a compiled model",
        "cannot be changed",
        lambda t: t("set_graph_input_node", t.graph, (ctypes.c_char_p * 1)(b"x"), 1),
    ),
    ("a graph without inputs", "set_graph_input_node comes first", lambda t: t("prerun_graph", t.empty)),
    ("NHWC", "NCHW", lambda t: t("set_graph_layout", t.empty, 1)),
]
NULLS: list[tuple[str, str, Callable[[Tengine], ctypes.c_void_p]]] = [
    ("no such file", "there is no /no/such", lambda t: t.created(Path("/no/such"))),
    ("not a model", "cannot be compiled", lambda t: t.created(Path(__file__))),
    ("no file name", "file name is NULL", lambda t: t.pointer("create_graph", None, b"tengine", None)),
    ("no size", "size of the model is 0", lambda t: t.pointer("create_graph", None, b"tengine:m", b"x", 0)),
    ("unknown context", "not of this kind (context)", lambda t: t.pointer("create_graph", t.graph, b"tengine", b"x")),
    ("unknown tensor", "no tensor 'x'", lambda t: t.pointer("get_graph_tensor", t.graph, b"x")),
    ("no such output", "no output tensor 0 of node 4", lambda t: t.pointer("get_graph_output_tensor", t.graph, 4, 0)),
    (
        "output before a run",
        "",
        lambda t: t.pointer("get_tensor_buffer", t.pointer("get_graph_output_tensor", t.graph, 0, 0)),
    ),
    ("a node of a model", "cannot be changed", lambda t: t.pointer("create_graph_node", t.graph, b"x", b"Const")),
    ("an unknown operator", "no operator 'X'", lambda t: t.pointer("create_graph_node", t.empty, b"x", b"X")),
    ("a name twice", "a node 'relu' already", lambda t: t.pointer("create_graph_node", t.empty, b"relu", b"ReLU")),
    ("a tensor twice", "'loose' already", lambda t: t.pointer("create_graph_tensor", t.empty, b"loose", 0)),
    ("a tensor of no type", "no data type 9", lambda t: t.pointer("create_graph_tensor", t.empty, b"y", 9)),
    ("a node's missing input", "no input tensor 0", lambda t: t.pointer("get_node_input_tensor", t.relu, 0)),
    ("node by a number", "", lambda t: t.pointer("get_graph_node_by_idx", t.graph, 99)),
    (
        "a damaged tmfile",
        "damaged",
        lambda t: t.pointer("create_graph", None, b"tengine:m", b"\2\0\0\0\0\0\0\0\x10" + bytes(91), 100),
    ),
]


def test_table_of_the_documentation() -> None:
    """The page lists these cases, with the results and the messages."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "tengine-api.md").read_text()
    table = page.split("| what is wrong | result | message |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [(row[0], "-1", row[1]) for row in MISUSE] + [(row[0], "NULL", row[1]) for row in NULLS]
    expected = [f"| {what} | {result} | {f'`{said}`' if said else 'none'} |" for what, result, said in rows]
    assert table.splitlines() == expected


@pytest.mark.parametrize(("text", "call"), [row[1:] for row in MISUSE], ids=[row[0] for row in MISUSE])
def test_misuse_gives_minus_one(tengine: Tengine, text: str, call: Callable[[Tengine], int]) -> None:
    tengine.messages.clear()
    assert call(tengine) == -1
    said = "".join(tengine.messages)
    assert text in said if text else not said


@pytest.mark.parametrize(("text", "call"), [row[1:] for row in NULLS], ids=[row[0] for row in NULLS])
def test_misuse_gives_null(
    tengine: Tengine,
    text: str,
    call: Callable[[Tengine], ctypes.c_void_p],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TENON", "TENON_CACHE"):
        monkeypatch.setenv(name, environment[name])
    tengine.messages.clear()
    assert not call(tengine).value
    said = "".join(tengine.messages)
    assert text in said if text else not said


HANDLES = ("graph", "tensor", "node", "context")
TAKE_HANDLES = [
    name for name, (_, arguments) in FUNCTIONS.items() if arguments.startswith(tuple(f"{h}_t " for h in HANDLES))
]


@pytest.mark.parametrize("name", TAKE_HANDLES)
def test_handles_that_are_none(name: str, tengine: Tengine) -> None:
    """Every function with a handle gives -1 or NULL for NULL, a handle of another kind, and one of what has ended."""
    result, arguments = FUNCTIONS[name]
    kind = arguments.split("_t ")[0]
    ended = {"tensor": tengine.ended_input, "node": tengine.ended_node}.get(kind, tengine.ended)
    other = tengine.input if kind == "graph" else tengine.graph
    function = tengine.library[name]
    function.restype = ctypes.c_int if result == "int" else ctypes.c_void_p
    rest = [Options() if "struct options" in each else tengine.room for each in arguments.split(", ")[1:]]
    for handle in (None, ended, other):
        if name == "create_graph" and handle is None:
            continue  # a context of its own
        returned = function(handle, *rest)
        if name == "get_context_device_number" and handle is None:
            assert returned == 0, "as in Tengine"
            continue
        assert result == "void" or returned == (-1 if result == "int" else None)


class Options(ctypes.Structure):
    """``struct options``."""

    _fields_ = (
        ("threads", ctypes.c_int),
        ("cluster", ctypes.c_int),
        ("precision", ctypes.c_int),
        ("mask", ctypes.c_uint64),
    )


def test_functions_without_handles(tengine: Tengine) -> None:
    """NULL names, and numbers of nothing."""
    without = sorted(FUNCTIONS.keys() - set(TAKE_HANDLES))
    assert without == sorted([*CALLED_ALONE, "create_context", "load_tengine_plugin", "unload_tengine_plugin"])
    assert tengine("unload_tengine_plugin", None, None) == -1
    assert not tengine.pointer("get_tengine_plugin_name", -1).value
    context = tengine.pointer("create_context", None, 1)
    assert context.value, "a context needs no name"
    assert tengine("add_context_device", context, None) == -1
    assert tengine("set_context_device", context, None, None, ctypes.c_size_t(0)) == -1
    assert tengine("remove_context_device", context, None) == 0, "as in Tengine"
    tengine.library.destroy_context(context)
    assert tengine("set_default_device", None) == -1
    assert tengine("request_tengine_version", None) == 1


CALLED_ALONE = [
    "init_tengine",
    "release_tengine",
    "get_tengine_version",
    "get_tengine_hcl_version",
    "request_tengine_version",
    "get_tengine_errno",
    "clr_tengine_errno",
    "set_log_level",
    "set_log_output",
    "get_cluster_affinity_mask",
    "get_tengine_plugin_number",
    "get_tengine_plugin_name",
    "set_default_device",
    "get_default_device",
]
"""Functions that nothing can be given wrongly to, but NULL and numbers of nothing."""


def test_models_are_read_after_init_tengine(tengine: Tengine, place: Path) -> None:
    """A graph without a model needs no initialisation, as in Tengine."""
    tengine.library.release_tengine()
    tengine.messages.clear()
    assert not tengine.created(small_bundle(place)).value
    assert "init_tengine comes first" in tengine.messages[-1]
    empty = tengine.pointer("create_graph", None, None, None)
    assert empty.value
    assert tengine("destroy_graph", empty) == 0
    for _ in range(2):
        assert tengine("init_tengine") == 0
    graph = tengine.created(small_bundle(place))
    assert graph.value, tengine.messages
    assert tengine("destroy_graph", graph) == 0


def test_contexts(tengine: Tengine) -> None:
    context = tengine.pointer("create_context", b"mine", 1)
    assert tengine("get_context_device_number", context) == 0
    assert tengine("add_context_device", context, b"TIMVX") == -1
    assert tengine("set_context_device", context, b"CPU", None, ctypes.c_size_t(0)) == 0
    assert tengine("add_context_device", context, b"CPU") == -1, "one that is there already"
    tengine.library.destroy_context(context)
    assert tengine("get_context_device_number", context) == -1
