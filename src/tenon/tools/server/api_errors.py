"""Errors as OpenAI's API states them."""

from __future__ import annotations

from typing import Any

from tenon.errors import InputError, LengthError, TenonError


class ApiError(Exception):
    """A request that is not answered: an HTTP ``status``, why, and the parameter at fault."""

    def __init__(self, status: int, message: str, parameter: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.parameter, self.code = status, parameter, code

    @classmethod
    def of(cls, error: TenonError, parameter: str | None = None) -> ApiError:
        """The error of a request that the model refuses, because of a ``parameter`` if it is known, or of the model
        itself."""
        if not isinstance(error, InputError):
            return cls(500, str(error))
        return cls(400, str(error), parameter, "context_length_exceeded" if isinstance(error, LengthError) else None)

    def content(self) -> dict[str, Any]:
        """The error object."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.parameter, "code": self.code}}


_KINDS = {429: "rate_limit_error"}
