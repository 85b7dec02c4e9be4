"""Bytes of files: read whole, written all or nothing, JSON and zip archives in them."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import orjson

from moesaic.planner.formats.errors import FormatError

ZIP = b"PK"
LARGEST = 8 << 30
"""Bytes of an archive's member that are still unpacked."""

_BROKEN_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    OverflowError,
)


def read(path: Path) -> bytes:
    """All bytes of a file. Raises FormatError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error


def write(path: Path, data: bytes) -> None:
    """The file appears with all its bytes, or stays as it was. Raises FormatError."""
    beside = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def json_of(data: bytes, path: Path) -> Any:
    """The JSON value in `data`. Raises FormatError with line and column."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"{path}: expected JSON, {error}") from error


class Archive:
    """A zip file's members, each unpacked when asked for. Raises FormatError."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except _BROKEN_ZIP as error:
            raise FormatError(f"{path}: expected a zip archive: {error}") from error
        self.names = tuple(self._zip.namelist())

    def read(self, name: str) -> bytes:
        """A member's bytes, their checksum compared."""
        if name not in self.names:
            raise FormatError(f"{self.path}: expected a member {name!r}, found {', '.join(self.names) or 'none'}")
        info = self._zip.getinfo(name)
        if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise FormatError(f"{self.path}: {name}: compression method {info.compress_type} is not known")
        if info.file_size > LARGEST:
            raise FormatError(f"{self.path}: {name}: {info.file_size} bytes are more than {LARGEST}")
        try:
            return self._zip.read(name)
        except _BROKEN_ZIP as error:
            raise FormatError(f"{self.path}: {name}: broken: {error}") from error
