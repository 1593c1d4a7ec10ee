"""C entry points that take images and give detections: ``<name>_image.h`` and ``<name>_image.c``."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NETWORK = "network.h"
_IMAGES = (
    "tables.h",
    "elements.h",
    "image.h",
    "preprocess.h",
    "detect.h",
    "elements.c",
    "image.c",
    "preprocess.c",
    "detect.c",
)
"""Parts of the C file besides the network's own, in the order in which these need each other."""

_SYMBOLS = ("inputs", "outputs", "preprocessing", "heads", "labels", "label_count")

_INCLUDE = re.compile(r'^#include "[^"]*"\n', re.MULTILINE)
_SHARED_FUNCTION = re.compile(r"^(?=(?:const )?\w+ \*?tenon_\w+\()", re.MULTILINE)
"""Where the declaration or definition of a function begins that files of ``runtime/c/`` share."""

_HEADER = """\
/* The network {name} on images: resized and preprocessed as recorded when it was compiled, and the objects that a
   detector finds.  Results are those of `tenon run`, bit for bit, if {name}_image.c is compiled with
   -ffp-contract=off.

   These functions are re-entrant.  Unlike {name} itself, they take memory by malloc, and return it. */

#ifndef {prefix}_IMAGE_H
#define {prefix}_IMAGE_H

#include "{name}.h"

#ifdef __cplusplus
extern "C" {{
#endif

/* Results of {name}_image if it did not run: no memory, or an image of no pixels or other channels. */
#define {prefix}_NO_MEMORY (-1)
#define {prefix}_BAD_IMAGE (-2)

/* An object: its class, its score, and its box in pixels of the image. */
typedef struct {{
  long kind;
  float score;
  double left, top, right, bottom;
}} {name}_detection;

/* Run on bytes [height][width][channels], channels being 1 (grey) or 3 (red, green, blue); returns what {name}
   returns.  The regions are those of {name}; the outputs are in the mutable region. */
int {name}_image(const uint8_t *pixels, long height, long width, int channels, const uint8_t *constantWeight,
                 uint8_t *mutableWeight, uint8_t *activations);

/* The objects in the outputs for an image of height x width with a score of at least `threshold` (0.5), best first;
   boxes that overlap a better one of the same class by more than `overlap` (0.45, intersection over union) are
   removed.  Stores at most `room` of them in `found`; returns how many, or -1 without memory. */
long {name}_detect(const uint8_t *mutableWeight, long height, long width, double threshold, double overlap,
                   {name}_detection *found, long room);

/* The name of a class in UTF-8, or NULL. */
const char *{name}_label(long kind);

#ifdef __cplusplus
}}
#endif

#endif
"""


def image_header(name: str) -> str:
    """The text of ``<name>_image.h``."""
    return _HEADER.format(name=name, prefix=name.upper())


def image_source(name: str, runtime: Mapping[str, str], tables: Mapping[str, str]) -> str:
    """The text of ``<name>_image.c``, which needs no other file than the headers of the bundle, and whose functions
    are static but for the entry points, so that a program can have several.

    ``runtime`` are the hand-written C files, ``tables`` the preprocessing and the format of detections
    (``bundle.preprocessing``).
    """
    words = {"NAME": name, "PREFIX": name.upper()}
    entry = re.sub("NAME|PREFIX", lambda match: words[match[0]], runtime["image_entry.c"])
    names = "".join(f"#define tenon_{symbol} {name}_tenon_{symbol}\n" for symbol in _SYMBOLS)
    images = [_SHARED_FUNCTION.sub("static ", runtime[file]) for file in _IMAGES]
    parts = [runtime[_NETWORK], *images, *tables.values(), entry]
    head = f'/* Entry points for images, see {name}_image.h. */\n\n#include "{name}_image.h"\n\n{names}\n'
    return head + "\n".join(_INCLUDE.sub("", part) for part in parts)


SOURCES = (_NETWORK, *_IMAGES, "image_entry.c")
"""The hand-written C files that ``image_source`` needs."""
