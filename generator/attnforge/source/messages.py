"""Messages on standard error."""

from __future__ import annotations

import os
import sys
from typing import IO, Any, TextIO

import click


class Refused(click.UsageError):
    """An error about files, libraries or devices, which is printed without the usage of the command."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the message alone."""
        click.ClickException.show(self, file)


def say(message: click.ClickException | str) -> None:
    """Prints a message on standard error; if that fails, as on a full disk, only the exit code reports it."""
    try:
        if isinstance(message, str):
            click.echo(message, err=True)
        else:
            message.show()
    except BrokenPipeError:
        raise
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Discards what is written to a stream: flushing what it still holds, Python would fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
