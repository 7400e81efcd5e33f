"""Text in, problems out: YAML whose values know their places, typed fields, files that ship with the package."""
