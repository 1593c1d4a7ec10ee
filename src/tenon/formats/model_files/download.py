"""Models at http(s) addresses, with a cache of what was fetched.

Only replies of a stated length, or with the SHA-256 that the user gave, are cached: otherwise a truncated reply cannot
be distinguished from a complete one.  User names, passwords and query strings are used to fetch and never shown."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tenon.errors import FormatError, InputError
from tenon.private_files import read_private, write_private

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and, if the server sends it, the total."""

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60
"""Without a byte."""
MAX_SECONDS = 3600
"""For all of a file."""
MAX_BYTES = 4 << 30
_MAX_NAME_LENGTH = 100
_uncached: dict[str, tuple[bytes, bool]] = {}
"""The last reply that is not in the cache: a model is read several times while it is compiled."""


def fetched(url: str, sha256: str | None, cache: Path, progress: Progress | None) -> bytes:
    """The content of ``url``, from the cache if a valid copy is there.

    Raises InputError when the address is malformed, the network or the server fails or the reply exceeds ``MOST_BYTES``
    or ``MOST_SECONDS``, and FormatError when the SHA-256 is not the one given.
    """
    wanted = sha256.strip().lower() if sha256 else None
    kept = cache / f"{hashlib.sha256(url.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}-{file_name(url)}"
    known = read_private(kept)
    if known is not None and wanted in (None, hashlib.sha256(known).hexdigest()):
        return known
    if url not in _uncached:
        _uncached.clear()
        _uncached[url] = _fetch(url, progress)
    data, whole = _uncached[url]
    digest = hashlib.sha256(data).hexdigest()
    if wanted not in (None, digest):
        del _uncached[url]
        what = "the file is damaged or is another version"
        raise FormatError(f"{shown(url)}: the SHA-256 is {digest}, expected {wanted}; {what}")
    if whole or wanted:
        with contextlib.suppress(InputError):  # without room for a copy, the next process fetches again
            write_private(kept, data)
            del _uncached[url]
    return data


# ----------------------------------------------------------------------------------------- addresses
def scheme_of(text: str) -> str:
    """The scheme of an address in small letters; "" for a path."""
    return _split(text).scheme.lower() if "://" in text else ""


def file_name(url: str) -> str:
    """The last part of the address's path, as a plain file name."""
    name = Path(unquote(_split(url).path)).name
    clean = "".join(c if c.isprintable() and c not in '\\/:*?"<>|' else "_" for c in name)
    return clean[-_MAX_NAME_LENGTH:] or "model"


def shown(url: str) -> str:
    """The address for messages, without what may be secret: user, password, query and fragment."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?..." if parts.query else "")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # its text may quote the address
        raise InputError(f"an address that begins with '{url.partition('://')[0]}://' is not well formed") from error


class _SameKind(HTTPRedirectHandler):
    """Follows redirections to http(s) only: urllib's own also goes to ftp."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if scheme_of(newurl) not in ("http", "https"):
            fp.close()
            raise URLError(f"it redirects to an address of {scheme_of(newurl) or 'no scheme'}, not http or https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _request(url: str) -> Request:
    parts = _split(url)
    user, at, host = parts.netloc.rpartition("@")
    request = Request(parts._replace(netloc=host, fragment="").geturl())
    if at:
        name, _, password = user.partition(":")
        token = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")  # not for whom it redirects to
    return request


# ------------------------------------------------------------------------------------------- network
def _fetch(url: str, progress: Progress | None) -> tuple[bytes, bool]:
    """The content of ``url``, and whether it is known to be complete.  Raises InputError."""
    try:
        with build_opener(_SameKind).open(_request(url), timeout=TIMEOUT_SECONDS) as response:
            return _received(url, response, progress)
    except HTTPError as error:
        with error:  # it is the reply, too
            raise InputError(f"{shown(url)}: cannot be fetched: HTTP status {error.code} {error.reason}") from None
    except URLError as error:
        raise InputError(f"{shown(url)}: cannot be fetched: {error.reason}") from None
    except IncompleteRead:
        raise InputError(f"{shown(url)}: the connection ended before the file did; try again") from None
    except (OSError, HTTPException, ValueError) as error:
        # Messages of the last two quote the address, and such an exception must not be chained to ours either.
        reason = (
            "timed out" if isinstance(error, TimeoutError) else getattr(error, "strerror", "") or type(error).__name__
        )
        raise InputError(f"{shown(url)}: cannot be fetched: {reason}") from None


def _received(url: str, response: HTTPResponse, progress: Progress | None) -> tuple[bytes, bool]:
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isascii() and length.isdigit() else None
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise InputError(f"{shown(url)}: the server sends it compressed ({coding[:40]}) without being asked to")
    if total is not None and total > MAX_BYTES:
        raise InputError(f"{shown(url)}: it has {total} bytes; at most {MAX_BYTES} are fetched")
    content, deadline = io.BytesIO(), time.monotonic() + MAX_SECONDS
    while chunk := response.read1(CHUNK):  # read() would wait for a whole chunk, however slowly its bytes come
        content.write(chunk)
        if content.tell() > MAX_BYTES:
            raise InputError(f"{shown(url)}: it has more than {MAX_BYTES} bytes; no more are fetched")
        if time.monotonic() > deadline:
            raise InputError(f"{shown(url)}: {content.tell()} bytes were received within {MAX_SECONDS} s; try again")
        if progress is not None:
            progress(content.tell(), total)
    if total is not None and content.tell() != total:
        raise InputError(f"{shown(url)}: the connection ended after {content.tell()} of {total} bytes; try again")
    return content.getvalue(), total is not None or response.chunked
