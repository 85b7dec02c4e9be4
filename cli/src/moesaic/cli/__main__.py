"""`moesaic`, `python -m moesaic.cli`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from moesaic.cli import load, plan, replay, status, up
from moesaic.cli.errors import Stop
from moesaic.shared.service import Fatal


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parse = argparse.ArgumentParser(
        prog="moesaic", description="Serve Mixture-of-Experts models whose experts stay balanced while they serve."
    )
    commands = parse.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (up, status, load, plan, replay):
        command.add(commands)
    return parse


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; its exit status ends the process."""
    args = parser().parse_args(argv)
    try:
        status = args.run(args)
        sys.stdout.flush()
        sys.exit(status)
    except Stop as error:
        sys.stderr.write(f"moesaic: {error}\n")
        sys.exit(error.status)
    except Fatal as error:
        sys.stderr.write(f"moesaic: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


if __name__ == "__main__":
    main()
