"""Errors at the command line: a message on standard error and an exit code."""

from __future__ import annotations

import sys
from typing import Any

import click

DIFFERENT, WRONG_INPUT, OWN_FAULT = 1, 2, 3
EXIT_CODES = {
    0: "good",
    DIFFERENT: "a check or test found a difference",
    WRONG_INPUT: "the input is wrong",
    OWN_FAULT: "the program's own fault",
}


class Program(click.Group):
    """Turns what went wrong into a message on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from ..source.errors import SpecError

        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except (SpecError, OSError) as error:
            click.echo(str(error) if isinstance(error, SpecError) else f"error: {error}", err=True)
            ctx.exit(WRONG_INPUT)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            click.echo(f"error: attnforge itself failed: {type(error).__name__}: {error}", err=True)
            ctx.exit(OWN_FAULT)
