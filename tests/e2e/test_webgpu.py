"""Networks by WebGPU in a headless browser, on a software device: operators, whole networks, what is refused."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import tenon
from browser import Session, session
from launched_kernels import Launched, assert_close, can_run, keep_after, program_of, recorded, result
from operator_cases import LOWERED
from real import DIGITS, held_out_digits
from tenon.errors import UnsupportedError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.plan.program import Call, Memory, Place, Program, Region
from tenon.network.graph.graph import Array

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


# Slow for the browser's sake: one session on SwiftShader may stop answering after many networks.
@pytest.mark.slow
@pytest.mark.parametrize("every", [False, True], ids=["sample", "every"])
def test_operators_give_what_their_references_do(page: Page, every: bool) -> None:
    cases = [case for case in list(LOWERED.values())[:: 1 if every else SHARE] if can_run(case, "webgpu")]
    assert len(cases) > 15
    for start in range(0, len(cases), 40):
        batch = [(case, recorded(case, "webgpu")) for case in cases[start : start + 40]]
        launch([call for _, calls in batch for call in calls], page)
        for case, calls in batch:
            for a, b in zip(result(case, calls, "webgpu"), case.op.evaluate(case.arrays()), strict=True):
                assert_close(a, b, case)


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
