"""Around every handler: the request's id, errors in the API's shape, a count."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from moesaic.gateway.errors import ApiError, internal, invalid
from moesaic.gateway.metrics import Metrics
from moesaic.shared import log

REQUEST_ID = web.RequestKey("request_id", str)
LONGEST_ID = 128
CHARSETS = {"utf-8", "utf8", "us-ascii"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def envelope(metrics: Metrics) -> Middleware:
    """The middleware of the whole application."""

    @web.middleware
    async def wrap(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[REQUEST_ID] = _request_id(request.headers.get("x-request-id", ""))
        try:
            _check_charset(request)
            response = await handler(request)
        except ApiError as error:
            response = _failed(error)
        except web.HTTPException as error:
            response = _failed(_translated(error), dict(error.headers))
        except web.RequestPayloadError as error:
            response = _failed(invalid(f"the body cannot be read: {error}"))
        except ConnectionResetError:
            raise  # the client has left: nobody is there to be told
        except Exception as error:  # noqa: BLE001  # the rim: a caller always gets the API's shape, the log gets the rest
            log.get("gateway").exception("a handler failed", path=request.path, error=repr(error))
            response = _failed(internal("internal error"))
        if not response.prepared:
            response.headers["x-request-id"] = request[REQUEST_ID]
        metrics.http.labels(_route(request), response.status).inc()
        return response

    return wrap


def _request_id(given: str) -> str:
    usable = given[:LONGEST_ID].strip()
    return usable if usable.isascii() and usable.isprintable() and usable else secrets.token_hex(16)


def _check_charset(request: web.Request) -> None:
    if (request.charset or "utf-8").lower() not in CHARSETS:
        raise invalid("the body must be UTF-8", code="invalid_charset")


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


def _failed(error: ApiError, headers: dict[str, str] | None = None) -> web.Response:
    kept = {name: value for name, value in (headers or {}).items() if name.lower() == "allow"}
    response = web.Response(body=error.body, status=error.status, headers=kept | error.headers)
    response.content_type = "application/json"
    if error.status == 413:
        response.force_close()
    return response


def _translated(error: web.HTTPException) -> ApiError:
    """What aiohttp itself answers, in the API's words."""
    texts = {
        404: "there is no such endpoint",
        405: "this endpoint does not take that method",
        413: "the request body is too large",
    }
    return ApiError(error.status, texts.get(error.status, error.reason), code=f"http_{error.status}")
