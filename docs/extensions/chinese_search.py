"""Search in the Chinese pages: words are pairs of neighbouring characters, on both sides.

Sphinx splits Chinese pages into words with a dictionary, but not what a reader types, so that "内存规划" is found
only if the dictionary has it as one word.  Pairs need no dictionary: a page matches if it has all pairs of the query.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

TERM = re.compile(r"[\u3400-\u9fff]+|\w+", re.ASCII)


def pairs(text: str) -> list[str]:
    """The terms of a text: words of letters and digits, and pairs of neighbouring Chinese characters.

    A Chinese character that stands alone between other text is a term of its own.
    """
    terms = list[str]()
    for term in TERM.findall(text):
        if term[0] < "\u3400" or len(term) == 1:
            terms.append(term)
        else:
            terms += [term[i : i + 2] for i in range(len(term) - 1)]
    return terms


class SearchPairs(SearchEnglish):
    """Chinese by pairs of characters, English words by their stems."""

    lang = "zh"
    language_name = "English"  # names the stemmer in the script of the page
    js_splitter_code = """
function splitQuery(query) {
  const terms = [];
  for (const term of query.match(/[\\u3400-\\u9fff]+|[A-Za-z0-9_]+/g) || []) {
    if (term[0] < "\\u3400" || term.length === 1) terms.push(term);
    else for (let i = 0; i + 1 < term.length; i++) terms.push(term.slice(i, i + 2));
  }
  return terms;
}
"""

    def split(self, input: str) -> list[str]:
        return pairs(input)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_search_language(SearchPairs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
