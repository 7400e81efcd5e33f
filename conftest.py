"""What tests and the suites of `generated` share."""

pytest_plugins = ["attnforge.gpu.interpreter"]
