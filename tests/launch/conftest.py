"""Job files are made without the seconds of a simulation: tests/verify/simulate/test_first.py has it."""

import pytest


@pytest.fixture(autouse=True)
def _no_simulation(monkeypatch):
    monkeypatch.setattr("monograph.commands.launch_job.SIMULATE", f"{__name__}:answer_nothing")


def answer_nothing(config, mesh, *, instead):
    """In the place of a simulation."""
    return "not simulated: a test"
