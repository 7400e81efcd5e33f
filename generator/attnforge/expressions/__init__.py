"""The expression language: its tree, its words, the parser, what an expression may read, and algebra on trees."""
