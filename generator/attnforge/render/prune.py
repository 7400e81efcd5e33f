"""Leaves out of kernels what nothing in them reads: templates name places that not every variant asks for."""

from __future__ import annotations

import ast


def unread(text: str) -> str:
    """The text without the statements that give a value to a name which their function never reads."""
    while lines := {line for function in _functions(text) for line in _idle(function)}:
        text = "".join(line for i, line in enumerate(text.splitlines(keepends=True), 1) if i not in lines)
    return text


def _functions(text: str) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


def _idle(function: ast.FunctionDef) -> set[int]:
    """The lines of such statements; expressions of kernels do nothing but give a value, stores are statements."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    found: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id not in read:
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found
