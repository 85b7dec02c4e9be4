"""Logging: structlog to stderr, for people on a terminal and as JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import cast

import structlog

Log = structlog.stdlib.BoundLogger


def configure(service: str, level: str = "info", json: bool | None = None) -> Log:
    """Set up logging for this process. `json` None: JSON lines unless stderr is a terminal."""
    lines = json if json is not None else not sys.stderr.isatty()
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if lines
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)  # no locals in logs
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if lines else structlog.processors.StackInfoRenderer(),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    return get(service)


def get(service: str) -> Log:
    """The process's logger, bound to a service's name."""
    return cast(Log, structlog.get_logger(service=service))
