"""A model's tokenizer: text to token ids and back, and single tokens for log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders

LONG = 4096
"""Characters from which on a text is encoded in a thread."""


class BadTokenizer(ValueError):
    """A tokenizer.json that cannot be read."""


class Vocabulary:
    """Wraps a `tokenizer.json`."""

    def __init__(self, data: bytes) -> None:
        try:
            self._tokenizer = Tokenizer.from_buffer(data)
        except Exception as error:  # tokenizers raises nothing narrower
            raise BadTokenizer(f"tokenizer.json cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bytes = _byte_alphabet() if isinstance(self._tokenizer.decoder, decoders.ByteLevel) else {}

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids; `special`: with those that the tokenizer puts around a text."""
        if len(text) < LONG:
            return self._encode(text, special)
        return await asyncio.to_thread(self._encode, text, special)

    def _encode(self, text: str, special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text; incomplete characters as U+FFFD, unknown ids as nothing."""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special)

    def token_text(self, token: int) -> str:
        """One token as text, special ones too."""
        return self.decode([token], skip_special=False)

    def token_bytes(self, token: int) -> bytes:
        """One token's bytes, which need not be whole characters."""
        raw = self._tokenizer.id_to_token(token)
        if raw is not None and self._bytes and all(char in self._bytes for char in raw):
            return bytes(self._bytes[char] for char in raw)
        return self.token_text(token).encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself, or one from U+0100 on in order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
