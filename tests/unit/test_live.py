"""Cameras, video files and streams: a line for each frame, drawn frames, and clear errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tenon.cli.window
from detectors import bright_areas
from installed import succeeds
from installed import tenon as command
from tenon.errors import InputError
from tenon.runtime.engine.video import frames, is_video, open_cv

COUNT = 5


def frame(number: int) -> Image.Image:
    """A red square that moves to the right, on black: one detection of class 0."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[24:32, 8 * (number + 1) : 8 * (number + 2), 0] = 255
    return Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.onnx").write_bytes(bright_areas())
    (tmp_path / "names.txt").write_text("red\nblue\n")
    photos = [frame(i) for i in range(COUNT)]
    photos[0].save(tmp_path / "x.gif", save_all=True, append_images=photos[1:], duration=40)
    return tmp_path


def write_video(path: Path, code: str = "MJPG") -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed: pip install opencv-python-headless")
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*code), 25, (64, 64))
    if not writer.isOpened():
        pytest.skip(f"this OpenCV cannot write {code}")
    for i in range(COUNT):
        writer.write(np.ascontiguousarray(np.asarray(frame(i))[:, :, ::-1]))
    writer.release()


RUN = ("run", "net.onnx", "--scale", "1/255", "--threshold", "0.5", "--labels", "names.txt")


def lefts(folder: Path, *words: str) -> list[float]:
    """The left edges of the boxes in all frames."""
    listed = json.loads(succeeds(*RUN, *words, "--json", cwd=folder))
    assert listed["frames_per_second"] > 0
    return [round(f["detections"][0]["box"][0]) for f in listed["frames"]]


def test_frames_of_an_animation_need_no_opencv(folder: Path) -> None:
    assert lefts(folder, "x.gif") == [6, 14, 22, 30, 38]
    shown = succeeds(*RUN, "x.gif", cwd=folder).splitlines()
    assert len(shown) == COUNT + 1
    assert shown[2].startswith("frame 2 ")
    assert "red" in shown[2]
    assert shown[-1].startswith("5 frames, ")


def test_a_frame_has_one_line_whatever_its_length(folder: Path) -> None:
    (folder / "names.txt").write_text("a name with spaces " * 10 + "\n")
    shown = succeeds(*RUN, "x.gif", "--frames", "1", cwd=folder).splitlines()
    assert len(shown) == 2
    assert len(shown[0]) > 190


def test_the_number_of_frames_and_a_part_of_them(folder: Path) -> None:
    assert lefts(folder, "x.gif", "--frames", "2") == [6, 14]
    assert lefts(folder, "x.gif", "--crop", "0,16,32,48", "--frames", "1") == [7]


def test_drawn_frames(folder: Path) -> None:
    succeeds(*RUN, "x.gif", "--draw", "y.gif", cwd=folder)
    with Image.open(folder / "y.gif") as drawn, Image.open(folder / "x.gif") as given:
        assert getattr(drawn, "n_frames", 1) == COUNT
        assert np.abs(np.asarray(drawn.convert("RGB"), float) - np.asarray(given.convert("RGB"), float)).max() > 50


@pytest.mark.parametrize(("name", "code"), [("x.avi", "MJPG"), ("x.mp4", "mp4v")])
def test_video_files(name: str, code: str, folder: Path) -> None:
    write_video(folder / name, code)
    assert np.abs(np.array(lefts(folder, name)) - [6, 14, 22, 30, 38]).max() <= 2
    succeeds(*RUN, name, "--draw", f"y{Path(name).suffix}", cwd=folder)
    assert len(list(frames(str(folder / f"y{Path(name).suffix}")))) == COUNT
    assert not list(folder.glob(".y*"))


def test_a_file_in_place_of_a_camera(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV opens camera 0 through its real interface; its number is mapped to a file, because no virtual device
    can be loaded into a container's kernel."""
    cv2 = open_cv_or_skip()
    write_video(folder / "x.avi")
    opened, real = [], cv2.VideoCapture

    def capture(source: object) -> Any:
        opened.append(source)
        return real(str(folder / "x.avi"))

    monkeypatch.setattr(cv2, "VideoCapture", capture)
    assert [photo.size for photo in frames(0)] == [(64, 64)] * COUNT
    assert opened == [0]


def test_no_camera(folder: Path) -> None:
    open_cv_or_skip()
    if list(Path("/dev").glob("video*")):
        pytest.skip("this machine has a camera")
    done = command(*RUN, "--camera", "3", cwd=folder)
    assert (done.returncode, "--camera 3" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_a_window_needs_an_opencv_that_has_windows(folder: Path) -> None:
    cv2 = open_cv_or_skip()
    if "headless" not in str(cv2.getBuildInformation()) and "GUI:                           NONE" not in str(
        cv2.getBuildInformation()
    ):
        pytest.skip("this OpenCV has windows")
    done = command(*RUN, "x.gif", "--show", cwd=folder)
    assert (done.returncode, "opencv-python" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("sys.stderr.write('qt: no display\\nAborting\\n'); sys.stderr.flush(); os.abort()", "(qt: no display)"),
        ("raise RuntimeError('not implemented')", "(RuntimeError: not implemented)"),
        ("os._exit(3)", "(exit status 3)"),
    ],
)
def test_an_opencv_that_ends_its_process_without_a_display(ends: str, said: str, folder: Path) -> None:
    """OpenCV with Qt does so: the window is tried in another process."""
    (folder / "cv2.py").write_text(f"import os, sys\ndef namedWindow(name):\n    {ends}\n")
    done = command(*RUN, "x.gif", "--show", cwd=folder, PYTHONPATH=str(folder))
    assert (done.returncode, said in done.stderr, "--draw" in done.stderr) == (2, True, True), done.stderr


class ClosedError(Exception):
    pass


@pytest.mark.parametrize(
    ("key", "visible", "goes_on"),
    [
        (255, 1.0, True),
        (ord("q"), 1.0, False),
        (27, 1.0, False),
        (255, 0.0, False),
        (255, -1.0, False),
        (255, None, False),
    ],
)
def test_what_ends_a_window(key: int, visible: float | None, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys, and closing it: OpenCV's backends then give 0 or -1, or raise an error."""

    def visibility(name: str, kind: int) -> float:
        if visible is None:
            raise ClosedError
        return visible

    module = SimpleNamespace(
        imshow=lambda name, pixels: None,
        waitKey=lambda milliseconds: key,
        getWindowProperty=visibility,
        destroyAllWindows=lambda: None,
        WND_PROP_VISIBLE=4,
        error=ClosedError,
    )
    monkeypatch.setattr(tenon.cli.window, "open_cv", lambda: module)
    monkeypatch.setattr(tenon.cli.window, "_try", lambda: None)
    with tenon.cli.window.window(True) as show:
        assert show(frame(0)) is goes_on


def open_cv_or_skip() -> Any:
    return pytest.importorskip("cv2", reason="OpenCV is not installed: pip install opencv-python-headless")


def test_opencv_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(InputError, match="pip install opencv-python"):
        open_cv()
    (folder / "x.avi").write_bytes(b"nothing")
    with pytest.raises(InputError, match="read by OpenCV"):
        list(frames(str(folder / "x.avi")))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x.gif", "--camera", "0"), "x.gif is given already"),
        (("absent.gif",), "absent.gif"),
        (("absent.mp4",), "No such file"),
        (("broken.gif",), "not a readable animation"),
        (("x.png", "--show"), "--show: no effect"),
        (("x.gif", "--output", "y.npz"), "--output: no effect"),
        (("x.gif", "--draw", "y.png"), "frames are written to"),
        (("x.gif", "--target", "riscv64"), "this machine only"),
    ],
)
def test_what_does_not_go_with_frames(words: tuple[str, ...], said: str, folder: Path) -> None:
    frame(0).save(folder / "x.png")
    (folder / "broken.gif").write_bytes(b"GIF89a")
    done = command(*RUN, *words, cwd=folder)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_names_of_videos() -> None:
    assert all(map(is_video, ["a.MP4", "b.avi", "rtsp://host/stream", "http://host:8080/video", "c.gif"]))
    assert not any(map(is_video, ["a.png", "b.jpg", "c.wav", "d.npy", "mp4"]))
