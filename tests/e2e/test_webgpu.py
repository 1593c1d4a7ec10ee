"""Networks by WebGPU in a headless browser, on a software device: operators, whole networks, what is refused."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from PIL import Image

import onnx_models
import tenon
from browser import Session, session
from installed import tenon as command
from launched_kernels import Launched, assert_close, can_run, keep_after, program_of, recorded, result
from operator_cases import LOWERED
from real import DIGITS, held_out_digits
from tenon.errors import UnsupportedError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.plan.program import Branch, Call, Memory, Place, Program, Region
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array
from tenon.network.ops.base import Case

FLAGS = (
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",
)
SHARE = 48
"""One case in so many is a sample; the other sweep runs all that WGSL can express."""
RUN = """
(async () => {{
  const {{ create }} = await import("/{module}");
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const network = await create(bytes("{weights}")), tensors = bytes("{tensors}");
  await network.run(tensors);
  {again}
  network.destroy();
  let text = "";
  for (const byte of tensors) text += String.fromCharCode(byte);
  return btoa(text);
}})()
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Page:
    """A page of a server on this machine, and the folder that it serves."""

    def __init__(self, browser: Session, folder: Path) -> None:
        self.browser, self.folder, self.count = browser, folder, 0

    def run(self, module: str, weights: bytes, tensors: bytes, *, twice: bool = False) -> Array:
        """The mutable region after a run of the module's network."""
        self.count += 1
        name = f"network{self.count}.js"
        (self.folder / name).write_text(module)
        given = {"weights": base64.b64encode(weights).decode(), "tensors": base64.b64encode(tensors).decode()}
        again = "await network.run(tensors);" if twice else ""
        made = self.browser.evaluate(RUN.format(module=name, again=again, **given))
        return np.frombuffer(base64.b64decode(made), np.uint8)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder, data = tmp_path_factory.mktemp("served"), tmp_path_factory.mktemp("data")
    (folder / "index.html").write_text("<!doctype html><title>WebGPU</title>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with session(data, *FLAGS) as browser:
        browser.open(f"http://localhost:{server.server_port}/index.html")
        if not browser.evaluate("(async () => !!(await navigator.gpu?.requestAdapter()))()"):
            pytest.skip("this browser has no WebGPU adapter, not even SwiftShader")
        yield Page(browser, folder)
    server.shutdown()
    server.server_close()


def launch(calls: Sequence[Launched], page: Page) -> None:
    """Run the kernels in one program; gives every call its operands after."""
    program, before = program_of(calls)
    module = find_backend("webgpu").program([program], "cases.h").files[0].text
    keep_after(calls, program, page.run(module, b"", before))


def assert_as_reference(case: Case, results: Sequence[Array]) -> None:
    """WGSL lets a device take subnormal floats for zeros: results are those of the inputs, or of such zeros."""
    given = case.arrays()
    small = np.finfo(np.float32).tiny
    flushed = [
        a if a is None or a.dtype != np.float32 else np.where(abs(a) < small, np.copysign(np.float32(0), a), a)
        for a in given
    ]
    expected = [case.op.evaluate(given), case.op.evaluate(flushed)]
    same = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(*expected, strict=True))
    for a, *references in zip(results, *expected, strict=True):
        try:
            assert_close(a, references[0], case)
        except AssertionError:
            if same:
                raise
            assert_close(a, references[1], case)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sample", "every"])
def test_operators_give_what_their_references_do(page: Page, every: bool) -> None:
    cases = [case for case in list(LOWERED.values())[:: 1 if every else SHARE] if can_run(case, "webgpu")]
    assert len(cases) > 15
    for start in range(0, len(cases), 40):
        batch = [(case, recorded(case, "webgpu")) for case in cases[start : start + 40]]
        launch([call for _, calls in batch for call in calls], page)
        for case, calls in batch:
            assert_as_reference(case, result(case, calls, "webgpu"))


def test_a_network_runs_as_on_the_processor(page: Page, tmp_path: Path) -> None:
    """The bundle as it is saved: a module and the weights."""
    image = held_out_digits()[0][0].astype(np.float32)
    bundle = tenon.compile(DIGITS / "digits.onnx", target="webgpu", no_tuning=True)
    folder = bundle.save(tmp_path / "out")
    tensors = np.zeros(bundle.program.memory.mutable, np.uint8)
    (given,), (output,) = bundle.program.inputs, bundle.program.outputs
    tensors[given.offset : given.offset + image.nbytes] = image.reshape(-1).view(np.uint8)
    made = page.run((folder / "digits.js").read_text(), bytes(bundle.weights), tensors.tobytes(), twice=True)
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", target="x86-64", no_tuning=True)) as engine:
        expected = engine.run(image)["probabilities"]
    probabilities = made[output.offset : output.offset + output.type.nbytes].view(np.float32)
    np.testing.assert_allclose(probabilities, expected.reshape(-1), atol=1e-6)


@pytest.fixture(scope="module")
def both(page: Page) -> Path:
    """The digit network as a page and as an npm package, unpacked, with its forms for WebGPU and WebAssembly."""
    given: dict[str, Any] = {"no_tuning": True, "preprocess": {"scale": 1.0}}
    bundle = tenon.compile(DIGITS / "digits.onnx", target="wasm32", **given)
    both = bundle.with_webgpu(tenon.compile(DIGITS / "digits.onnx", target="webgpu", **given))
    both.save(page.folder / "both", ("html", "npm"))
    shutil.unpack_archive(page.folder / "both" / "digits-1.0.0.tgz", page.folder / "both", "gztar", filter="data")
    return page.folder / "both"


def expected_digit() -> tuple[Array, Array]:
    """An image, and the probabilities by this machine's processor."""
    image = held_out_digits()[0][0].astype(np.float32)
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", target="x86-64", no_tuning=True)) as engine:
        return image, engine.run(image)["probabilities"].reshape(-1)


PACKAGE = """
(async () => {
  const { load } = await import("/both/package/index.js");
  const request = GPUAdapter.prototype.requestDevice;
  let device;
  GPUAdapter.prototype.requestDevice = async function (given) { return (device = await request.call(this, given)); };
  const seen = [], feeds = { "NAME": IMAGE };
  const run = async (model) => {
    const { probabilities } = await model.run(feeds);
    seen.push([model.device, model.reason, [...probabilities]]);
  };
  const model = await load();
  await run(model);
  seen.push([...(await Promise.all([model.run(feeds), model.run(feeds)])).map((o) => [...o.probabilities])]);
  device.destroy();
  await run(model);
  await run(model);
  await model.use("webgpu");
  await run(model);
  const adapter = model.adapter;
  device.destroy();
  seen.push(await model.run(feeds).then(() => "", (error) => error.message));
  await run(await load(undefined, { device: "wasm" }));
  GPUAdapter.prototype.requestDevice = async () => { throw new Error("planted"); };
  await run(await load());
  seen.push(await load(undefined, { device: "webgpu" }).then(() => "", (error) => error.message));
  GPUAdapter.prototype.requestDevice = request;
  return { seen, adapter };
})()
"""


def test_a_package_uses_webgpu_and_falls_back(page: Page, both: Path) -> None:
    """The same answers on both.  A device that is lost or missing is a reason, and an error if it was asked for."""
    image, expected = expected_digit()
    name = next(iter(tenon.load(DIGITS / "digits.onnx").inputs)).name
    script = PACKAGE.replace("NAME", name).replace("IMAGE", json.dumps(image.ravel().tolist()))
    result = page.browser.evaluate(script)
    first, together, lost, later, again, refused, asked, planted, forced = result["seen"]
    assert "SwiftShader" in result["adapter"] or "google" in result["adapter"].lower()
    for device, _, probabilities in (first, lost, later, again, asked, planted):
        np.testing.assert_allclose(probabilities, expected, atol=1e-6, err_msg=device)
    for probabilities in together:
        np.testing.assert_array_equal(probabilities, first[2])
    devices = [each[0] for each in (first, again, lost, later, asked, planted)]
    assert devices == ["webgpu", "webgpu", "wasm", "wasm", "wasm", "wasm"]
    assert first[1] == again[1] == ""
    assert lost[1].startswith("the WebGPU device was lost: ")
    assert later[1] == lost[1]
    assert refused.startswith("the WebGPU device was lost: ")
    assert asked[1] == "WebAssembly was asked for"
    assert (planted[1], forced) == ("planted", "WebGPU cannot be used: planted")


def test_a_page_uses_webgpu(page: Page, both: Path) -> None:
    """From a server and as a file, on the device that is chosen; the first target is the default one."""
    image, expected = expected_digit()
    Image.fromarray(image[0, 0].astype(np.uint8)).save(both / "digit.png")
    browser, served = page.browser, page.browser.evaluate("location.origin")
    done = "document.body.dataset.state === 'ready' && Number(document.body.dataset.runs ?? 0) === 1"
    for address, used in (
        (f"{served}/both/digits.html", "webgpu"),
        ((both / "digits.html").as_uri(), "webgpu"),
        (f"{served}/both/digits.html?device=wasm", "wasm"),
    ):
        browser.open(address)
        browser.until("document.body.dataset.state === 'ready'")
        browser.evaluate("document.getElementById('tab-file').click()")
        browser.choose("#file", both / "digit.png")
        browser.until(done)
        assert browser.evaluate("document.body.dataset.device") == used, address
        np.testing.assert_allclose(browser.evaluate("[...tenonResult.outputs.probabilities]"), expected, atol=1e-6)
        text = browser.evaluate("document.getElementById('device-used').innerText")
        assert text.startswith("WebGPU: " if used == "webgpu" else "WebAssembly: WebAssembly was asked for")
    browser.open(f"{served}/index.html")


BRANCHES = """<ir_version: 8, opset_import: ["": 21]>
g (float[40,8] x, bool c, bool d) => (float[40,8] y, float[40,8] z) {
    y = If (c) <then_branch = t () => (float[40,8] a) {
            u = Exp(x)
            a = If (d) <then_branch = t2 () => (float[40,8] b) { b = Add(u, x) },
                        else_branch = e2 () => (float[40,8] b2) { b2 = Mul(u, u) }>
        },
        else_branch = e () => (float[40,8] f) { n = Neg(x) f = Tanh(n) }>
    z = Scan <num_scan_inputs: int = 1, body = s (float[8] r) => (float[8] v) {
        zero = Constant <value = float {0.0}> () m = ReduceSum <keepdims: int = 0> (r) h = Greater(m, zero)
        v = If (h) <then_branch = p () => (float[8] q) { q = Sqrt(r) },
                    else_branch = k () => (float[8] l) { l = Neg(r) }> }> (y)
}"""
"""Branches in a branch, and in each iteration of a loop."""


def test_one_branch_runs(page: Page) -> None:
    graph = tenon.load(onnx.parser.parse_model(BRANCHES).SerializeToString())
    bundle = tenon.compile(graph, target="webgpu", no_tuning=True)
    assert any(isinstance(item, Branch) for item in bundle.program.items)
    tensors = np.zeros(bundle.program.memory.mutable, np.uint8)
    ports, (y, z) = {port.name: port for port in bundle.program.inputs}, bundle.program.outputs
    for number in range(4):
        x = np.abs(onnx_models.random(40, 8, seed=number))
        x[::3] *= -1
        given = {"x": x, "c": np.array(bool(number & 1)), "d": np.array(bool(number & 2))}
        for name, array in given.items():
            at = ports[name].offset
            tensors[at : at + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        made = page.run(bundle.source, bytes(bundle.weights), tensors.tobytes(), twice=number == 0)
        with np.errstate(invalid="ignore"):
            right = evaluate(graph, given)
        for port in (y, z):
            result = made[port.offset : port.offset + port.type.nbytes].view(np.float32)
            np.testing.assert_allclose(result, right[port.name].ravel(), rtol=1e-4, atol=1e-5)


STATES = """
(async () => {
  const { load } = await import("/states/package/index.js"), { create } = await import("/states/package/kernels.js");
  const sequence = SEQUENCE, seen = [];
  for (const device of ["webgpu", "wasm"]) {
    const model = await load(undefined, { device });
    for (const x of sequence) seen.push([...(await model.run({ x })).y]);
    await model.reset();
    for (const x of sequence) seen.push([...(await model.run({ x })).y]);
  }
  const { size, inputs, outputs } = DESCRIPTION, tensors = new Uint8Array(size);
  const network = await create(new Uint8Array(await (await fetch("/states/package/webgpu.bin")).arrayBuffer()));
  for (let i = 0; i < 2; i++) {
    network.reset(tensors);
    for (const x of sequence) {
      new Float32Array(tensors.buffer, inputs[0], x.length).set(x);
      await network.run(tensors);
      seen.push([...new Float32Array(tensors.buffer, outputs[0], seen[0].length)]);
    }
  }
  network.destroy();
  return seen;
})()
"""


def test_states_are_kept_and_reset(page: Page) -> None:
    """In a package on both devices, and by its module for WebGPU alone; in a page by a button."""
    weights = {"W": onnx_models.random(1, 12, 5, seed=1), "R": onnx_models.random(1, 12, 4, seed=2)}
    layer = onnx_models.node("GRU", ["x", "W", "R", "", "", "h"], ["y", "hn"], hidden_size=4)
    graph = tenon.load(
        onnx_models.model([layer], {"x": (2, 1, 5), "h": (1, 1, 4)}, ["y", "hn"], weights).SerializeToString()
    )
    graph.initial["h"] = (0.5, -1.0, 2.0, 0.25)
    bundle, form = (tenon.compile(graph, target=each, name="gru", no_tuning=True) for each in ("wasm32", "webgpu"))
    folder = page.folder / "states"
    bundle.with_webgpu(form).save(folder, ("html", "npm"))
    shutil.unpack_archive(folder / "gru-1.0.0.tgz", folder, "gztar", filter="data")
    assert '"h"?: Float32Array;' in (folder / "package" / "index.d.ts").read_text()
    sequence = [onnx_models.random(2, 1, 5, seed=i) for i in range(2)]
    with tenon.open(tenon.compile(graph, no_tuning=True)) as engine:
        expected = [engine.run({"x": x})["y"].ravel() for x in sequence]
    (x, _), (y, _) = form.program.inputs, form.program.outputs
    offsets = {"size": form.program.memory.mutable, "inputs": [x.offset], "outputs": [y.offset]}
    script = STATES.replace("SEQUENCE", json.dumps([x.ravel().tolist() for x in sequence]))
    seen = page.browser.evaluate(script.replace("DESCRIPTION", json.dumps(offsets)))
    np.testing.assert_allclose(seen, 6 * expected, atol=1e-5)

    browser, served = page.browser, page.browser.evaluate("location.origin")
    browser.open(f"{served}/states/gru.html")
    browser.until("document.body.dataset.state === 'ready'")
    assert browser.evaluate("document.querySelectorAll('#arrays textarea').length") == 1
    for number, array in enumerate(2 * sequence, 1):
        if number == 3:
            browser.evaluate("document.getElementById('reset').click()")
        text = " ".join(map(str, array.ravel().tolist()))
        browser.evaluate(f"document.getElementById('numbers-0').value = '{text}'")
        browser.evaluate("document.getElementById('run').click()")
        browser.until(f"Number(document.body.dataset.runs ?? 0) === {number}")
        result = browser.evaluate("[...tenonResult.outputs.y]")
        np.testing.assert_allclose(result, expected[(number - 1) % 2], atol=1e-5)
    browser.open(f"{served}/index.html")


def test_a_page_says_why_it_has_no_form_for_webgpu(page: Page, tmp_path: Path) -> None:
    """Layers that WGSL cannot express are the reason, in the command and in the page."""
    nodes = [onnx_models.node("NonZero", ["x"], ["y"])]
    model = tmp_path / "positions.onnx"
    model.write_bytes(onnx_models.model(nodes, {"x": (2, 3)}, ["y"]).SerializeToString())
    done = command("compile", model, "--target", "webgpu,wasm32", "--emit", "html", "-o", page.folder / "positions")
    assert done.returncode == 0, done.stderr
    assert "positions.onnx runs without WebGPU" in done.stderr
    origin = page.browser.evaluate("location.origin")
    page.browser.open(f"{origin}/positions/positions.html")
    page.browser.until("document.body.dataset.state === 'ready'")
    text = page.browser.evaluate("document.getElementById('device-used').innerText")
    assert text.startswith("WebAssembly: NonZero")
    assert "this target has no i64" in text
    page.browser.open(f"{origin}/index.html")


def test_numbers_of_64_bits_are_refused() -> None:
    case = next(case for case in LOWERED.values() if case.op.name == "NonZero")
    call = recorded(case)[0]
    places = tuple(Place(Region.ACTIVATIONS, 4096 * j) for j in range(len(call.kernel.params)))
    program = Program("cases", (), (), (Call(call.kernel, places, "places", "NonZero"),), (), Memory(0, 0, 1 << 16, 0))
    with pytest.raises(UnsupportedError, match="NonZero 'places': this target has no i64"):
        find_backend("webgpu").program([program], "cases.h")


def test_a_module_names_its_device_and_its_limits() -> None:
    """Errors of devices end in one message each."""
    module = tenon.compile(DIGITS / "digits.onnx", target="webgpu", no_tuning=True).unit.files[0].text
    for message in ("there is no WebGPU adapter", "the WebGPU device was lost", "has at most"):
        assert message in module
