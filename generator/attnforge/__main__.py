"""`python -m attnforge`."""

from .cli.commands import main

main(prog_name="attnforge")
