"""The parts of examples/train.py: its text, its model, a run of it, and what is told of two runs."""
