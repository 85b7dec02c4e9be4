"""Prompts of the demo model's domains, as token ids."""

from __future__ import annotations

from tokenizers import Tokenizer

from engine.ranks import TINY

TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
PROMPTS = [
    "def fib(n):\n    if n < 2:\n        return",
    "In the beginning the king of Israel",
    "12 + 30 = 42\n51 + 17 = ",
    "#include <stdio.h>\n#define MAX",
    "请使用以下命令安装软件包",
    "The function returns the number of",
]


def ids(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids
