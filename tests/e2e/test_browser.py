"""Pages in a headless browser, and npm packages in node and in a browser: the same answers as elsewhere."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import browser
import onnx_models
import tenon
from browser import Session
from detectors import bright_areas
from installed import succeeds
from installed import tenon as command
from real import DIGITS, ROOT, held_out_digits, shared
from tenon.errors import InputError, ToolchainError
from tenon.network.graph.graph import Array
from tenon.runtime import web
from tenon.runtime.engine.detect import detections
from tenon.runtime.engine.device import run_on_device
from tenon.runtime.engine.image import read_image
from tenon.runtime.web.npm import package_name
from text_models import written_model

HOSTILE = '</script><script>document.body.dataset.error="ran"</script>'
NO_ADAPTER = "there is no WebGPU adapter: this browser or machine has none"
RUNS = "Number(document.body.dataset.runs ?? 0)"
FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with browser.session(tmp_path_factory.mktemp("browser"), *FAKE_CAMERA) as session:
        yield session
        assert not session.errors


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digit network for the browser, by the command in docs/tutorials/browser.md."""
    folder = tmp_path_factory.mktemp("digits")
    (folder / "examples").symlink_to(DIGITS.parent)
    program, *arguments = shlex.split(_documented("console")[0].splitlines()[0].removeprefix("$ "))
    assert program == "tenon"
    succeeds(*arguments, cwd=folder)
    return folder / "digits-web"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A colour image without a loss, of another size than the inputs."""
    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 200, 50 * 70 * 3).reshape(50, 70, 3) + rng.integers(0, 56, (50, 70, 3))
    Image.fromarray(ramp.astype(np.uint8)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def digit(tmp_path: Path) -> Path:
    """The first held-out digit, and its class as the stem of the name."""
    images, labels = held_out_digits()
    path = tmp_path / f"{labels[0]}.png"
    Image.fromarray(images[0, 0, 0].astype(np.uint8)).save(path)
    return path


def _documented(language: str) -> list[str]:
    """The code of a language in docs/tutorials/browser.md."""
    text = (ROOT / "docs" / "tutorials" / "browser.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def open_page(session: Session, page: Path) -> None:
    session.open(page.as_uri())
    session.until("document.body.dataset.state")
    assert session.evaluate("document.body.dataset.state") == "ready", text_of(session, "message")


def text_of(session: Session, element: str) -> str:
    return str(session.evaluate(f"document.getElementById('{element}').innerText"))


def run_file(session: Session, image: Path) -> dict[str, Array]:
    """The outputs of the page for an image file."""
    runs = session.evaluate(RUNS)
    session.evaluate("document.getElementById('tab-file').click()")
    session.choose("#file", image)
    session.until(f"{RUNS} > {runs} || document.body.dataset.state === 'failed'")
    outputs = "Object.fromEntries(Object.entries(tenonResult.outputs).map(([name, array]) => [name, [...array]]))"
    return {name: np.array(values) for name, values in session.evaluate(outputs).items()}


def choose_device(session: Session, device: str, state: str) -> None:
    """Choose what the page runs on, and wait for the state after."""
    chosen = f"d.value = '{device}'; d.dispatchEvent(new Event('change'))"
    session.evaluate(f"{{ const d = document.getElementById('device'); {chosen} }}")
    session.until(f"document.body.dataset.state === '{state}'")


# ------------------------------------------------------------------------------------------------------ the page
def test_page_loads_nothing(digits: Path) -> None:
    text = (digits / "digits.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|src=[\"']|url\(|@import|<link", text)
    assert re.search(r"default-src 'none'", text)
    assert not re.search(r"@[A-Z]+@", text)  # no template's name is left


def test_page_gives_the_answer_of_the_bundle(chromium: Session, digits: Path, digit: Path) -> None:
    """Bit for bit that of the module under wasmtime, and that of this machine up to rounding."""
    open_page(chromium, digits / "digits.html")
    assert text_of(chromium, "device-used") == f"WebAssembly: {NO_ADAPTER}"
    choose_device(chromium, "webgpu", "failed")
    assert text_of(chromium, "message") == f"WebGPU cannot be used: {NO_ADAPTER}"
    choose_device(chromium, "wasm", "ready")
    assert text_of(chromium, "device-used") == "WebAssembly: WebAssembly was asked for"
    answer = run_file(chromium, digit)["probabilities"]
    pixels = read_image(digit, (1, 1, 8, 8)).pixels
    there = run_on_device(tenon.compile(DIGITS / "digits.onnx", target="wasm32"), pixels)["probabilities"]
    np.testing.assert_array_equal(answer.astype(np.float32), there[0])
    with tenon.open(tenon.compile(DIGITS / "digits.onnx")) as engine:
        np.testing.assert_allclose(answer, engine.run(pixels)["probabilities"][0], atol=2e-6, rtol=0)
    assert text_of(chromium, "answer").splitlines()[1].strip() == digit.stem
    assert re.match(r"preprocessing \d+\.\d ms, network \d+\.\d ms$", text_of(chromium, "times"))


def test_first_time_is_not_that_of_a_warm_up(chromium: Session) -> None:
    """The first run compiles and touches memory for the first time, so that it takes 50 ms here; later ones take 1."""
    worker = (Path(web.__file__).parent / "templates" / "worker.js").read_text()
    stand_in = """
    let clock = 0, runs = 0;
    const performance = { now: () => clock }, run = () => { clock += runs++ ? 1 : 50; return {}; };
    """
    model = "const webgpu = null; model = { takeImage() {}, runTaken: run, run, description: { detects: false } };"
    chromium.open("data:text/html,<p>")
    for task, given in (("image", "{ image: {} }"), ("arrays", "{ feeds: {} }")):
        times = (
            f"(async () => {{ {stand_in} {worker}; {model} return (await TASKS.{task}({given})).times.network; }})()"
        )
        assert chromium.evaluate(times) == 1


def test_drawing(chromium: Session, digits: Path) -> None:
    open_page(chromium, digits / "digits.html")
    chromium.evaluate("document.getElementById('tab-draw').click()")
    left, top = chromium.evaluate("(({ x, y }) => [x, y])(document.getElementById('pad').getBoundingClientRect())")
    stroke = [(80, 60), (200, 60), (170, 120), (140, 180), (120, 240)]
    chromium.draw([(left + x, top + y) for x, y in stroke])
    chromium.until(f"{RUNS} > 0 && document.body.dataset.state === 'ready'")
    assert text_of(chromium, "answer").splitlines()[1].strip() == "7"
    assert chromium.evaluate("document.getElementById('shown').hidden")  # the drawing area shows it
    chromium.evaluate("document.getElementById('benchmark').click()")
    chromium.until("document.getElementById('benchmarked').innerText.includes('median')")
    assert re.match(r"median [\d.e-]+ ms, least [\d.e-]+ ms$", text_of(chromium, "benchmarked"))


def test_camera(chromium: Session, digits: Path) -> None:
    """The browser's test camera."""
    open_page(chromium, digits / "digits.html")
    chromium.evaluate("document.getElementById('tab-camera').click(); document.getElementById('camera').click()")
    chromium.until(f"{RUNS} > 2")
    assert text_of(chromium, "camera") == "Stop the camera"
    chromium.evaluate("document.getElementById('tab-file').click()")
    assert chromium.evaluate("stream === null")


def test_narrow_window(chromium: Session, digits: Path) -> None:
    """As on a phone: nothing is wider than the window."""
    chromium.phone(360, 700)
    try:
        open_page(chromium, digits / "digits.html")
        for tab in ("draw", "file", "camera"):
            chromium.evaluate(f"document.getElementById('tab-{tab}').click()")
            edges = "[...document.body.querySelectorAll('*')].map((e) => e.getBoundingClientRect().right)"
            assert chromium.evaluate(f"Math.max(...{edges})") <= 360, tab
    finally:
        chromium.call("Emulation.clearDeviceMetricsOverride")


def test_files_that_are_no_image(chromium: Session, digits: Path, photo: Path, tmp_path: Path) -> None:
    open_page(chromium, digits / "digits.html")
    other = tmp_path / "text.txt"
    other.write_text("no image")
    run_file(chromium, photo)
    assert text_of(chromium, "answer")
    assert not chromium.evaluate("document.getElementById('shown').hidden")
    chromium.choose("#file", other)
    chromium.until("document.body.dataset.state === 'failed'")
    assert text_of(chromium, "message").startswith("text.txt is not an image that can be read: choose")
    assert (text_of(chromium, "answer"), text_of(chromium, "times")) == ("", "")
    assert chromium.evaluate("document.getElementById('shown').hidden"), "the image before stays below the error"
    Image.open(photo).save(tmp_path / "photo.webp", lossless=True)
    answers = [run_file(chromium, path)["probabilities"] for path in (photo, tmp_path / "photo.webp")]
    assert text_of(chromium, "message") == ""
    np.testing.assert_array_equal(answers[0], answers[1])


def test_keyboard_and_names(chromium: Session, digits: Path) -> None:
    """Tabs are reached and chosen by keys, and every control has a name."""
    open_page(chromium, digits / "digits.html")
    chromium.evaluate("document.getElementById('tab-draw').focus()")
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert chromium.evaluate("document.activeElement.id") == "tab-file"
    assert chromium.evaluate("document.getElementById('panel-draw').hidden")
    chromium.call("Accessibility.enable")
    nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
    controls = [n for n in nodes if n.get("role", {}).get("value") in ("button", "tab", "slider", "checkbox", "canvas")]
    assert len(controls) >= 5
    assert all(n["name"]["value"] for n in controls)


def test_detector_with_hostile_labels(chromium: Session, photo: Path, tmp_path: Path) -> None:
    """Boxes as in Python, with names that would end a script."""
    how: dict[str, Any] = {"preprocess": {"scale": 1 / 255, "fit": "letterbox"}, "labels": [HOSTILE, "blue&"]}
    bundle = tenon.compile(bright_areas(), name="areas", target="wasm32", **how)
    open_page(chromium, bundle.save(tmp_path / "out", ("html",)) / "areas.html")
    run_file(chromium, photo)
    with tenon.open(tenon.compile(bright_areas(), name="areas", **how)) as engine:
        seen = read_image(photo, (1, 3, 32, 32), engine.manifest.preprocessing["x"])
        expected = detections(engine, seen, engine.run({"x": seen.pixels}))
    shown = chromium.evaluate("tenonResult.detections")
    assert len(expected) > 3
    assert [(f["class"], f["label"]) for f in shown] == [(d.kind, how["labels"][d.kind]) for d in expected]
    np.testing.assert_allclose([f["box"] for f in shown], [d.box for d in expected], atol=1e-3)
    np.testing.assert_allclose([f["score"] for f in shown], [d.score for d in expected], atol=1e-6)
    assert text_of(chromium, "answer").startswith(f"{len(expected)} found")
    chromium.screenshot(tmp_path / "screen.png")
    with Image.open(tmp_path / "screen.png") as screen:
        colours = {colour for _, colour in screen.convert("RGB").getcolors(1 << 24) or ()}
    assert {(0xE6, 0x19, 0x4B), (0x00, 0x82, 0xC8)} & colours  # of the boxes
    assert not chromium.evaluate("document.body.dataset.error")
    chromium.evaluate(
        "const t = document.getElementById('threshold'); t.value = 0.95; t.dispatchEvent(new Event('input'))"
    )
    chromium.until(f"tenonResult.detections.length < {len(expected)}")


def test_network_that_takes_no_image(chromium: Session, tmp_path: Path) -> None:
    nodes = [onnx_models.node("Add", ["a", "b"], ["y"])]
    model = onnx_models.model(nodes, {"a": (1, 3), "b": (1, 3)}, ["y"]).SerializeToString()
    bundle = tenon.compile(model, name="sum", target="wasm32")
    open_page(chromium, bundle.save(tmp_path / "out", ("html",)) / "sum.html")
    chromium.evaluate("document.getElementById('run').click()")
    chromium.until("document.body.dataset.state === 'failed'")
    assert text_of(chromium, "message") == "a takes 3 numbers, not 0."
    for i, numbers in enumerate(("1 2.5,3", "-1;0\\n1e3")):
        chromium.evaluate(f"document.getElementById('numbers-{i}').value = '{numbers}'")
    chromium.evaluate("document.getElementById('run').click()")
    chromium.until(f"{RUNS} > 0")
    assert chromium.evaluate("[...tenonResult.outputs.y]") == [0, 2.5, 1003]


@pytest.mark.parametrize("arithmetic", [None, pytest.param("tflm", marks=pytest.mark.slow)])
def test_integer_model_is_identical(chromium: Session, arithmetic: Any, tmp_path: Path) -> None:
    """A photo classifier of integers: every element as on this machine."""
    model = shared("models/tflite_int8/coral_mobilenet/mobilenet_v1_0.25_128_quant.tflite")
    labels = shared("models/tflite_int8/coral_mobilenet/imagenet_labels.txt").read_text().splitlines()
    cat = shared("models/images/coral_cat.bmp")
    bundle = tenon.compile(model, name="net", target="wasm32", arithmetic=arithmetic, labels=labels)
    open_page(chromium, bundle.save(tmp_path / "out", ("html",)) / "net.html")
    with tenon.open(tenon.compile(model, name="net", arithmetic=arithmetic)) as engine:
        ((name, array),) = engine.inputs.items()
        for photo in (shared("models/images/coral_hot_dog.jpg"), cat):
            (answer,) = run_file(chromium, photo).values()
            pixels = read_image(photo, array.shape, engine.manifest.preprocessing[name], array.dtype).pixels
            (expected,) = engine.run(pixels).values()
            np.testing.assert_array_equal(answer, expected[0], photo.name)
    assert text_of(chromium, "answer").splitlines()[1].strip() == "Egyptian cat"


# ------------------------------------------------------------------------------------------------- the npm package
NODE = """
import { load } from "digits";
import { readFile } from "node:fs/promises";
const model = await load();
const pixels = JSON.parse(await readFile("pixels.json"));
const outputs = await model.run({ image: pixels });
const grey = { width: 8, height: 8, data: new Uint8Array(pixels.flatMap((v) => [v, v, v, 255])) };
const seen = await model.runImage(grey);
const errors = await Promise.all([() => model.run({}), () => model.run({ image: [1] }), () => model.run({ other: [1] }),
  () => model.detect(grey), () => model.decode(new Uint8Array([0x42, 0x4d, 0, 0])),
  () => model.runImage({ width: 9, height: 8, data: grey.data }), () => model.use("webgpu"), () => model.use("gpu"),
].map(async (call) => {
  try { await call(); return ""; } catch (error) { return error.message; }
}));
console.log(JSON.stringify({ outputs: [...outputs.probabilities], seen: [...seen.probabilities],
  decoded: [...model.decode(await readFile("digit.png")).data], other: model.decode(new Uint8Array(9)),
  top: model.top(outputs.probabilities, 2), errors, input: model.inputs[0].name, device: model.device,
  reason: (await load()).reason }));
"""


def _installed(package: Path, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm to install the package with")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    install = [npm, "install", "--offline", "--no-audit", "--no-fund", "--cache", str(folder / "cache"), str(package)]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_npm_package(chromium: Session, digits: Path, digit: Path, tmp_path: Path) -> None:
    """Installed by npm, it runs in node and in a browser, and both give the bundle's answer."""
    _installed(digits / "digits-1.0.0.tgz", tmp_path)
    pixels = read_image(digit, (1, 1, 8, 8)).pixels
    (tmp_path / "pixels.json").write_text(json.dumps(pixels.ravel().tolist()))
    name = next(iter(tenon.load(DIGITS / "digits.onnx").inputs)).name
    shutil.copy(digit, tmp_path / "digit.png")
    (tmp_path / "run.mjs").write_text(NODE.replace("image: ", f"{name}: "))
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    expected = run_on_device(tenon.compile(DIGITS / "digits.onnx", target="wasm32"), pixels)["probabilities"][0]
    assert answer["decoded"] == np.dstack([pixels[0, 0]] * 3 + [np.full((8, 8), 255)]).ravel().tolist()
    assert answer["other"] is None
    for kind in ("outputs", "seen"):
        np.testing.assert_array_equal(np.array(answer[kind], np.float32), expected, kind)
    assert str(answer["top"][0]["index"]) == digit.stem
    assert answer["errors"] == [
        f"no array for input '{name}' of digits",
        f"input '{name}' takes 64 elements, not 1",
        f"digits has no input 'other': {name}",
        "digits is no detector",
        "the image is truncated",
        "an image of 9 x 8 pixels needs 288 bytes, not 256",
        f"WebGPU cannot be used: {NO_ADAPTER}",
        "no device 'gpu': auto, webgpu, wasm",
    ]
    assert (answer["device"], answer["reason"]) == ("wasm", NO_ADAPTER)
    (tmp_path / "documented.mjs").write_text(_documented("js")[0])
    done = subprocess.run(["node", "documented.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[\n(  \{ index: \d, label: '', value: [\d.e-]+ \},?\n){3}\]\n", done.stdout)
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "empty.html").write_text("<!doctype html><title>empty</title><link rel=icon href=data:>")
        chromium.open(f"http://127.0.0.1:{server.server_port}/empty.html")
        script = f"""import("./node_modules/digits/index.js").then(async ({{ load }}) =>
          [...(await (await load()).run({{ {name}: {pixels.ravel().tolist()} }})).probabilities])"""
        got = chromium.evaluate(script)
        server.shutdown()
    np.testing.assert_array_equal(np.array(got, np.float32), expected)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_types_of_the_package(digits: Path, tmp_path: Path) -> None:
    """The types name the inputs and outputs; with tsc installed, they are compiled too."""
    shutil.unpack_archive(digits / "digits-1.0.0.tgz", tmp_path, "gztar", filter="data")
    types = (tmp_path / "package" / "index.d.ts").read_text()
    assert '  /** f32[1,10] */\n  "probabilities": Float32Array;' in types
    exported = set(re.findall(r"export (?:class|function) (\w+)", types))
    assert "): Promise<Outputs>;" in types
    assert exported == {"Model", "load", "largest"}
    index = (tmp_path / "package" / "index.js").read_text()
    assert exported == set(re.findall(r"\b(?:import|export)\b.*?\b(Model|load|largest)\b", index))
    package = json.loads((tmp_path / "package" / "package.json").read_text())
    assert sorted([*package["files"], "README.md", "package.json"]) == sorted(
        path.name for path in (tmp_path / "package").iterdir()
    )
    tsc = shutil.which("tsc")
    if tsc is not None:
        flags = ["--noEmit", "--strict", "--lib", "es2022,dom"]
        subprocess.run([tsc, *flags, "package/index.d.ts"], cwd=tmp_path, check=True)


def test_names_of_packages() -> None:
    assert package_name("MobileNet_v1_0_25") == "mobilenet-v1-0-25"
    assert package_name("_x__Y_") == "x-y"


def test_packages_and_pages_are_reproducible(digits: Path, tmp_path: Path) -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", target="wasm32")
    both = bundle.with_webgpu(tenon.compile(DIGITS / "digits.onnx", target="webgpu"))
    folder = both.save(tmp_path / "out", ("html", "npm"))
    for name in ("digits.html", "digits-1.0.0.tgz"):
        assert (folder / name).read_bytes() == (digits / name).read_bytes(), name


def test_other_targets_are_refused(tmp_path: Path) -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx")
    with pytest.raises((InputError, ToolchainError), match="--target wasm32"):
        bundle.save(tmp_path / "out", ("html",))
    assert not (tmp_path / "out").exists()
    done = command("compile", DIGITS / "digits.onnx", "--emit", "npm", "-o", "out", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "pages and npm packages take --target wasm32" in done.stderr
    for targets, parts, why in (("webgpu,wasm32", "exe", "for pages"), ("webgpu,x86-64", "html", "several targets go")):
        arguments = ("compile", DIGITS / "digits.onnx", "--target", targets, "--emit", parts, "-o", "out")
        done = command(*arguments, cwd=tmp_path)
        assert (done.returncode, f"--target {targets}" in done.stderr, why in done.stderr) == (2, True, True)


def test_other_networks_beside_are_refused() -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", target="wasm32")
    with pytest.raises(InputError, match="compile 'digits' with target=\"webgpu\""):
        bundle.with_webgpu(bundle)
    nodes = [onnx_models.node("Add", ["a", "b"], ["y"])]
    model = onnx_models.model(nodes, {"a": (1, 3), "b": (1, 3)}, ["y"]).SerializeToString()
    with pytest.raises(InputError, match="other inputs or outputs than 'digits'"):
        bundle.with_webgpu(tenon.compile(model, name="sum", target="webgpu"))


# ------------------------------------------------------------------------------------------- pages of language models
def test_page_goes_on_with_a_text(chromium: Session, tmp_path: Path) -> None:
    """The same text as in Python, greedy and by a seed; a text that is stopped, and one that cannot be."""
    pytest.importorskip("tokenizers")
    model = written_model(tmp_path / "model")
    bundle = tenon.compile(model, target="wasm32", context=60, no_tuning=True)
    folder = bundle.save(tmp_path / "net", ("html",))
    chromium.open((folder / "words.html").as_uri())
    chromium.until("document.body.dataset.ready === '1'")

    def text(prompt: str, **values: float) -> str:
        runs = chromium.evaluate(RUNS)
        fields = {"prompt": prompt, **values}
        for name, value in fields.items():
            chromium.evaluate(f"document.getElementById('{name}').value = {json.dumps(value)}")
        chromium.evaluate("document.getElementById('go').click()")
        chromium.until(f"{RUNS} > {runs}")
        return str(chromium.evaluate("document.getElementById('text').textContent"))

    chromium.evaluate("document.getElementById('plain').click()")
    with tenon.Generator(model, context=60, no_tuning=True) as generator:
        for prompt in ("the cat", "\u4f60\u597d <|end|> \u00fc"):
            wanted = generator.generate(prompt, max_tokens=20)
            assert text(prompt, most=20, temperature=0) == wanted.text
            wanted = generator.generate(prompt, max_tokens=20, temperature=1.2, top_k=50, seed=5)
            assert text(prompt, most=20, temperature=1.2, topk=50, seed=5) == wanted.text
    assert re.match(r"\d+ tokens, [\d.]+ per second", text_of(chromium, "times"))
    text("")
    assert text_of(chromium, "message") == "the prompt is empty or too long"
    chromium.evaluate("document.getElementById('chat').click()")
    messages = [{"role": "system", "content": "the mat"}]
    chromium.evaluate("document.getElementById('system').value = 'the mat'")
    with tenon.Generator(model, context=60, no_tuning=True) as generator:
        for question in ("the cat", "\u4f60\u597d", "and"):
            messages.append({"role": "user", "content": question})
            wanted = generator.generate(messages, max_tokens=5, temperature=1.2, top_k=50, seed=5)
            messages.append({"role": "assistant", "content": wanted.text})
            text(question, most=5, temperature=1.2, topk=50, seed=5)
            shown = chromium.evaluate("document.getElementById('talk').textContent")
            assert shown == "".join(m["content"] for m in messages[1:])
    page = (folder / "words.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|src=[\"']|url\(|@import|<link|@[A-Z]+@", page)
