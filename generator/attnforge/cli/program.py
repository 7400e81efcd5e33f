"""Errors at the command line: a message on standard error and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from ..source.messages import drop, say

# the last two are those that shells report for a program that SIGINT or SIGPIPE ended
DIFFERENT, WRONG_INPUT, OWN_FAULT, INTERRUPTED, UNREAD = 1, 2, 3, 128 + 2, 128 + 13
EXIT_CODES = {
    0: "good",
    DIFFERENT: "a check or test found a difference",
    WRONG_INPUT: "the input is wrong",
    OWN_FAULT: "the program's own fault",
    INTERRUPTED: "interrupted, as by Ctrl-C",
    UNREAD: "nobody reads the output to its end, as with `| head`",
}


@contextlib.contextmanager
def _while_read() -> Iterator[None]:
    """Exits silently if the output goes into a closed pipe; prints the errors of click and of the system."""
    try:
        try:
            yield
        except click.ClickException as error:
            say(error)
            raise click.exceptions.Exit(error.exit_code) from None
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            say("\ninterrupted")
            raise click.exceptions.Exit(INTERRUPTED) from None
        except OSError as error:
            say(f"error: {error}")
            raise click.exceptions.Exit(WRONG_INPUT) from None
    except (BrokenPipeError, SystemExit) as error:
        # rich turns the one into the other
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        drop(sys.stdout)
        drop(sys.stderr)
        raise click.exceptions.Exit(UNREAD) from None


def _open_closed_streams() -> None:
    """Replaces standard streams that are closed with the null device.

    Otherwise the next file that is opened would get their number, and what libraries and other programs write to it.
    """
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


class Program(click.Group):
    """Turns errors into a message on standard error and an exit code."""

    def main(self, *args: Any, **more: Any) -> Any:
        """Runs a command, and ends the process."""
        _open_closed_streams()
        return super().main(*args, **more)

    @_while_read()
    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Prints the help or the version, if they are asked for."""
        return super().make_context(*args, **more)

    @_while_read()
    def invoke(self, ctx: click.Context) -> Any:
        from ..source.errors import SpecError

        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
            raise
        except SpecError as error:
            say(str(error))
            ctx.exit(WRONG_INPUT)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            say(f"error: attnforge itself failed: {type(error).__name__}: {error}")
            ctx.exit(OWN_FAULT)
