"""The expression language: its tree, its vocabulary, the parser, the inputs of expressions, and algebra on trees."""
