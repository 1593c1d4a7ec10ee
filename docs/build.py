"""Build the documentation site in all languages: ``python docs/build.py SITE``, by ``scripts/docs``.

SITE/index.html         leads to the newest version, in the reader's language
SITE/versions.js        the versions that the site has
SITE/VERSION/en, zh     the pages
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
LANGUAGES = {"en": "en", "zh": "zh_CN"}
"""The folder of each language in the site, and its name in catalogues."""

FIRST_PAGE = """\
<!doctype html>
<meta charset="utf-8">
<title>Tenon</title>
<script>
  const language = (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
  location.replace(`{version}/${{language}}/index.html`);
</script>
<p><a href="{version}/en/index.html">English</a></p>
<p><a href="{version}/zh/index.html">中文</a></p>
"""


def version() -> str:
    return str(tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def build(site: Path) -> None:
    """Write this version's pages of all languages into a site, then the files at its root."""
    for number, (folder, language) in enumerate(LANGUAGES.items()):
        _sphinx(site / version() / folder, language, generate_pages=number == 0)
    versions = sorted((p.name for p in site.iterdir() if p.is_dir()), key=_order, reverse=True)
    (site / "versions.js").write_text(f"window.TENON_VERSIONS = {json.dumps(versions)};\n", encoding="utf-8")
    (site / "index.html").write_text(FIRST_PAGE.format(version=versions[0]), encoding="utf-8")


def _order(name: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in name.split(".")]


def _sphinx(out: Path, language: str, *, generate_pages: bool) -> None:
    """Build from scratch: Sphinx reads unchanged pages again only if it knows that an extension changed."""
    with tempfile.TemporaryDirectory() as doctrees:
        command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", "-b", "html", "-d", doctrees]
        command += ["-D", f"language={language}", "-D", f"generate_pages={generate_pages:d}", str(DOCS), str(out)]
        done = subprocess.run([sys.executable, *command], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
