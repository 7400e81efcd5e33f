"""The parts of examples/train.py: its text, its model, a training run, and the report on two runs."""
