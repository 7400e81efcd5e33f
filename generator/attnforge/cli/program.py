"""Errors at the command line: a message on standard error and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import click

# the last is what shells tell of a program that SIGPIPE ended
DIFFERENT, WRONG_INPUT, OWN_FAULT, UNREAD = 1, 2, 3, 128 + 13
EXIT_CODES = {
    0: "good",
    DIFFERENT: "a check or test found a difference",
    WRONG_INPUT: "the input is wrong",
    OWN_FAULT: "the program's own fault",
    UNREAD: "nobody reads the output to its end, as with `| head`",
}


@contextlib.contextmanager
def _while_read() -> Iterator[None]:
    """Ends without a word where what is printed goes into a closed pipe; says what click finds wrong."""
    try:
        try:
            yield
        except click.ClickException as error:
            _say(error)
            raise click.exceptions.Exit(error.exit_code) from None
    except (BrokenPipeError, SystemExit) as error:
        # rich makes the one of the other
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        _drop(sys.stdout)
        _drop(sys.stderr)
        raise click.exceptions.Exit(UNREAD) from None


def _drop(stream: TextIO) -> None:
    """Leaves out what is written to a stream: over what it still holds Python would fail once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(error: click.ClickException | str) -> None:
    """Prints a message on standard error; where there is no room for it, the exit code alone tells."""
    try:
        if isinstance(error, str):
            click.echo(error, err=True)
        else:
            error.show()
    except BrokenPipeError:
        raise
    except OSError:
        _drop(sys.stderr)


def _open_closed_streams() -> None:
    """Puts nothing in the place of standard streams that are closed.

    The next file that is opened would take their number, and what libraries and other programs write there.
    """
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


class Program(click.Group):
    """Turns what went wrong into a message on standard error and an exit code."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Runs a command, and ends the process."""
        _open_closed_streams()
        return super().main(*args, **more)

    @_while_read()
    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Prints the help or the version, where they are asked for."""
        return super().make_context(*args, **more)

    @_while_read()
    def invoke(self, ctx: click.Context) -> Any:
        from ..source.errors import SpecError

        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except (SpecError, OSError) as error:
            _say(str(error) if isinstance(error, SpecError) else f"error: {error}")
            ctx.exit(WRONG_INPUT)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            _say(f"error: attnforge itself failed: {type(error).__name__}: {error}")
            ctx.exit(OWN_FAULT)
