"""Text in, problems out: YAML whose values know their places, typed fields, files that come with the package."""
