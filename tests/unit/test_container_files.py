"""deploy/: the images, the compose file and the manifests of Kubernetes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tenon
from onnx_models import model, node
from real import ROOT

DEPLOY = ROOT / "deploy"
FILL = DEPLOY / "kubernetes" / "fill"
TEMPLATES = ("daemonset.yaml", "job.yaml")


def filled(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FILL), *words], capture_output=True, text=True, check=False)


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile and their words."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(name, words) for name, _, words in (line.partition(" ") for line in lines)]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for name, words in instructions():
        if name == "FROM":
            found[words.split(" AS ")[1]] = []
        elif found:
            found[list(found)[-1]].append((name, words))
    return found


def test_images_run_without_root_and_contain_what_is_copied() -> None:
    assert list(stages()) == ["build", "compiler", "slim", "runtime"]
    for image in ("compiler", "runtime"):
        own = dict(stages()[image])
        assert own["USER"] == "10001:10001"
        assert own["ENTRYPOINT"] == '["tenon"]'
    kept = set(re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    copied = {
        word for name, words in stages()["build"] if name == "COPY" for word in words.split()[:-1] if word[:2] != "--"
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in kept)


def test_what_the_runtime_image_leaves_out_is_not_needed_to_run(tmp_path: Path) -> None:
    (removed,) = (words for name, words in stages()["slim"] if name == "RUN")
    packages = [word for word in removed.split()[1:] if word not in ("uninstall", "pip", "protobuf") and word[0] != "-"]
    assert packages == ["ziglang", "onnx"]
    data = model([node("Relu", ["x"], ["y"])], {"x": [1, 8]}, ["y"], {}).SerializeToString()
    tenon.compile(data, name="net", no_tuning=True).save(tmp_path / "net.tenon")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys(('google.protobuf', *{packages}))); "
        f"sys.argv = ['tenon', 'benchmark', {str(tmp_path / 'net.tenon')!r}, '--rounds', '1', '--json']; "
        "from tenon.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_compose_file_builds_these_images() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert service["build"]["target"] in stages()
        assert (
            DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]
        ).resolve() == DEPLOY / "Dockerfile"
    assert services["benchmark"]["read_only"]
    assert services["benchmark"]["cap_drop"] == ["ALL"]


def pods(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("template", TEMPLATES)
def test_manifests_have_the_structure_that_kubernetes_wants(template: str) -> None:
    """Of apps/v1 DaemonSet and batch/v1 Job, the fields that the API server requires, and the restricted profile of the
    Pod Security Standards."""
    done = filled(template, "NAME=faces", "IMAGE=registry.example/tenon:1")
    assert done.returncode == 0, done.stderr
    assert "@" not in done.stdout.replace("#", "")
    manifest = yaml.safe_load(done.stdout)
    wanted = {"daemonset.yaml": ("apps/v1", "DaemonSet"), "job.yaml": ("batch/v1", "Job")}[template]
    assert (manifest["apiVersion"], manifest["kind"]) == wanted
    labels, pod = manifest["spec"]["template"]["metadata"]["labels"], pods(manifest)
    if template == "daemonset.yaml":
        assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    else:
        assert pod["restartPolicy"] in ("Never", "OnFailure")
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["resources"]["limits"]["memory"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", container["name"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a template"),
        (("absent.yaml",), "absent.yaml"),
        (("job.yaml", "COLOR=red"), "no placeholder COLOR"),
        (("job.yaml", "NAME=Faces"), "NAME=Faces: it is not of the form"),
        (("job.yaml", 'MODEL="], x: ["'), "it is not of the form"),
    ],
)
def test_wrong_values_are_refused(words: tuple[str, ...], message: str) -> None:
    done = filled(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
