"""What tests and the suites of `generated` share."""

import gc

pytest_plugins = ["attnforge.gpu.interpreter"]
# most of what tests make is gone with its last name
gc.set_threshold(50_000, 10, 10)


def pytest_collection_finish() -> None:
    """Called by pytest: tests and modules are no garbage, and nobody looks through them again."""
    gc.freeze()
