"""Translated pages: paragraphs are replaced in place, and README.zh.md is that of its catalogue."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from documented import blocks
from real import ROOT

PAGE = """# Title

- **bold** item
  on two lines
- [link](a.md)

| cell | other |
|---|---|
| one | two |

```
code
```
"""


@pytest.fixture(scope="module")
def translations() -> ModuleType:
    pytest.importorskip("babel")
    spec = importlib.util.spec_from_file_location("translations", ROOT / "docs" / "translations.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["translations"] = module
    spec.loader.exec_module(module)
    return module


def test_marks_of_lists_headings_and_tables_stay(translations: ModuleType) -> None:
    catalogue = translations.Catalog()
    pairs = {"Title": "标题", "**bold** item on two lines": "**粗体**条目", "[link](a.md)": "[链接](a.md)", "two": "二"}
    for message, translation in pairs.items():
        catalogue.add(message, translation)
    lines = translations.translated(PAGE, catalogue).splitlines()
    assert lines[:4] == ["# 标题", "", "- **粗体**条目", "- [链接](a.md)"]
    assert "| one | 二 |" in lines
    assert lines[-3:] == ["```", "code", "```"]


def test_paragraphs_without_current_translation_stay_as_they_are(translations: ModuleType) -> None:
    catalogue = translations.Catalog()
    catalogue.add("Title", "旧标题", flags=["fuzzy"])
    assert translations.translated(PAGE, catalogue) == PAGE


def test_chinese_readme_is_current(translations: ModuleType) -> None:
    """The text is that of the catalogue, which has all paragraphs; commands and programs are the same."""
    catalogue = translations._read(translations.CATALOGUES / "README.po")
    english, chinese = (ROOT / name for name in ("README.md", "README.zh.md"))
    text = english.read_text(encoding="utf-8")
    assert {message for _, _, message in translations._paragraphs(text)} == {m.id for m in catalogue if m.id}
    assert not translations.missing(catalogue)
    current = translations.translated(text, catalogue)
    assert current == chinese.read_text(encoding="utf-8"), "README.zh.md is stale: run python docs/translations.py"
    for language in ("console", "python", "c"):
        assert blocks(english, language) == blocks(chinese, language)
