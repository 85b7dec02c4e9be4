"""Errors as the OpenAI API shapes them: `{"error": {message, type, param, code}}` with an HTTP status."""

from __future__ import annotations

import orjson

TEXT_LIMIT = 400
"""Characters of an error's text: what a caller sent is not echoed at length."""


class ApiError(Exception):
    """An answer that is not a result."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= TEXT_LIMIT else message[: TEXT_LIMIT - 1] + "…"
        self.kind = kind
        self.param = None if param is None else param[:64]
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> bytes:
        """The JSON of the answer, and of the error event in a stream."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    @property
    def headers(self) -> dict[str, str]:
        """What goes into the answer's headers."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """What the caller sent cannot be served."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str) -> ApiError:
    """A known parameter that does not work yet."""
    return invalid(f"{param!r} is not supported yet", param, "unsupported_parameter")


def too_long(context: int, prompt: int, wanted: int) -> ApiError:
    """Prompt and completion do not fit the model (all in tokens)."""
    text = (
        f"This model's maximum context length is {context} tokens; "
        f"the request asks for {prompt + wanted} ({prompt} in the prompt, {wanted} for the completion)"
    )
    return invalid(text, "messages" if wanted == 0 else "max_tokens", "context_length_exceeded")


def no_such_model(model: str) -> ApiError:
    """The mesh has no model of that name."""
    text = f"The model {model[:100]!r} does not exist"
    return ApiError(404, text, param="model", code="model_not_found")


def unavailable(message: str, code: str = "no_engine") -> ApiError:
    """Nothing can serve it now; later something may."""
    return ApiError(503, message, kind="service_unavailable", code=code, retry_after=5)


def overloaded(message: str) -> ApiError:
    """Everything is busy; come back soon."""
    return ApiError(429, message, kind="rate_limit_error", code="overloaded", retry_after=1)


def internal(message: str, code: str = "internal_error", status: int = 500) -> ApiError:
    """A failure on our side."""
    return ApiError(status, message, kind="server_error", code=code)
