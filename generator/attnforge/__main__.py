"""`python -m attnforge`."""

from .cli import main

main(prog_name="attnforge")
