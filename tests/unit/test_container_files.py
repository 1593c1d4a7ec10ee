"""deploy/: the images, the compose file and the manifests of Kubernetes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
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


def compose_command() -> list[str] | None:
    """The command that checks compose files, None without one."""
    for command in (["docker", "compose"], ["docker-compose"]):
        with suppress(OSError):
            if subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0:
                return command
    return None


COMPOSE = compose_command()


def filled(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FILL), *words], capture_output=True, text=True, check=False)


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile and their words."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(name, words) for name, _, words in (line.partition(" ") for line in lines)]


def stages() -> dict[str, list[tuple[str, str]]]:
    stage_lines: dict[str, list[tuple[str, str]]] = {}
    for name, words in instructions():
        if name == "FROM":
            stage_lines[words.split(" AS ")[1]] = []
        elif stage_lines:
            stage_lines[list(stage_lines)[-1]].append((name, words))
    return stage_lines


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
    (tmp_path / "net.onnx").write_bytes(data)

    def tenon_without(*words: str) -> subprocess.CompletedProcess[str]:
        program = (
            f"import sys; sys.modules.update(dict.fromkeys(('google.protobuf', *{packages}))); "
            f"sys.argv = ['tenon', *{words}]; from tenon.cli import main; main()"
        )
        return subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    done = tenon_without("benchmark", "net.tenon", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    refused = tenon_without("compile", "net.onnx", "-o", "out")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "the Python package google.protobuf" in refused.stderr


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
    """The fields that the API server requires of a DaemonSet and a Job are there, and the restricted profile of the
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


@pytest.mark.parametrize("version", ["1.25", "1.29", "1.37"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_manifests_follow_the_schemas_of_kubernetes(template: str, version: str) -> None:
    """kubernetes-validate brings the schemas of the API of every version; strict ones know no other fields."""
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate (22 MB of schemas)")
    manifest = yaml.safe_load(filled(template, "NAME=faces", "IMAGE=registry.example/tenon:1").stdout)
    assert schemas.validate(manifest, version, strict=True) == version
    pods(manifest)["containers"][0]["readOnly"] = True
    with pytest.raises(schemas.ValidationError, match="readOnly"):
        schemas.validate(manifest, version, strict=True)


@pytest.mark.skipif(COMPOSE is None, reason="neither docker compose nor docker-compose is installed")
def test_compose_accepts_the_file() -> None:
    assert COMPOSE is not None
    done = subprocess.run(
        [*COMPOSE, "-f", str(DEPLOY / "compose.yaml"), "config"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MODEL": "faces.onnx"},
    )
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services["compile"]["command"][1] == "/work/faces.onnx"
    assert Path(services["compile"]["build"]["context"]) == ROOT


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
