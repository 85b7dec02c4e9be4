"""Prompts by domain for load and tests: text that a small base model continues."""

from __future__ import annotations

from importlib import resources

SEPARATOR = "\n%%\n"


def domains() -> list[str]:
    """Names of the domains."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".txt") for file in files if file.name.endswith(".txt"))


def prompts(domain: str) -> list[str]:
    """A domain's prompts. Raises KeyError for an unknown one."""
    file = resources.files(__name__) / f"{domain}.txt"
    if not file.is_file():
        raise KeyError(domain)
    return file.read_text(encoding="utf-8").rstrip("\n").split(SEPARATOR)
