"""The software bill of materials (SBOM) of a bundle: CycloneDX 1.5 in JSON, https://cyclonedx.org/docs/1.5/json/."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tenon.formats.wire.encryption import Key, WrongKeyError, read_key
from tenon.runtime.bundle.container import Container, is_container
from tenon.runtime.bundle.manifest import Manifest, read_manifest

_APACHE = [{"license": {"id": "Apache-2.0"}}]
_MIT = [{"license": {"id": "MIT"}}]


def sbom(bundle: str | Path, key: Key | None = None) -> str:
    """The text of the SBOM of a folder or a ``.tenon`` file, which lists its files with their digests, the model that
    they were compiled from, the run-time code that they contain, and the tools.

    It has no dates: the same bundle gives the same text.  ``key`` is that of an encrypted file.  Raises BundleError for
    a bundle that is damaged, or not encrypted although there is a key.
    """
    path = Path(bundle)
    if not is_container(path):
        if key is not None:
            raise WrongKeyError(str(path), unneeded=True)
        return _text(path.resolve().name, [read_manifest(path)], "")
    file = Container(str(path))
    if key is not None:
        if not file.encrypted:
            raise WrongKeyError(str(path), unneeded=True)
        file.unlock(read_key(key))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return _text(path.name, [file.manifest(target) for target in file.targets], digest)


def _text(name: str, manifests: Sequence[Manifest], digest: str) -> str:
    first = manifests[0]
    whole: dict[str, Any] = {"type": "application", "bom-ref": "bundle", "name": name, "version": first.tenon}
    if digest:
        whole["hashes"] = _hashes(digest)
    components = [part for m in manifests for part in (*_files(m), *_contents(m))]
    unique = {part["bom-ref"]: part for part in components}
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"tools": {"components": list(_tools(manifests))}, "component": whole},
        "components": list(unique.values()),
        "dependencies": [{"ref": "bundle", "dependsOn": list(unique)}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "serialNumber": serial.urn}
    return json.dumps({**head, **content}, indent=1, ensure_ascii=False) + "\n"


def _files(manifest: Manifest) -> Iterable[dict[str, Any]]:
    for name, record in manifest.files.items():
        ref = f"{manifest.target.name}/{name}"
        yield {"type": "file", "bom-ref": ref, "name": ref, "hashes": _hashes(record.sha256)}


def _contents(manifest: Manifest) -> Iterable[dict[str, Any]]:
    """The model and tools that the files were made of."""
    if origin := manifest.origin:
        yield {
            "type": "machine-learning-model",
            "bom-ref": f"model:{origin.sha256}",
            "name": origin.file,
            "hashes": _hashes(origin.sha256),
            "properties": [{"name": "tenon:format", "value": origin.format}],
        }
    yield {
        "type": "library",
        "bom-ref": "tenon-runtime",
        "name": "tenon-runtime",
        "version": manifest.tenon,
        "description": "Generated kernels and the thread pool",
        "licenses": _APACHE,
        "purl": f"pkg:pypi/tenon-nn@{manifest.tenon}",
    }
    executables = {manifest.name, f"{manifest.name}.exe"} & set(manifest.files)
    if executables and "musl" in manifest.target.triple:
        yield {"type": "library", "bom-ref": "musl", "name": "musl", "licenses": _MIT, "purl": "pkg:generic/musl"}


def _tools(manifests: Sequence[Manifest]) -> Iterable[dict[str, Any]]:
    for version in sorted({m.tenon for m in manifests}):
        yield {"type": "application", "name": "tenon", "version": version, "purl": f"pkg:pypi/tenon-nn@{version}"}
    for compiler in sorted({m.compiler for m in manifests if m.compiler}):
        name, _, version = compiler.partition(" ")
        yield {"type": "application", "name": name, **({"version": version} if version else {})}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]
