"""Tests of checkpoints do not wait for a disk that nobody repairs."""

import pytest

from monograph.train.checkpoint import patient_read


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(patient_read, "PAUSES_SECONDS", (0.0,) * len(patient_read.PAUSES_SECONDS))


@pytest.fixture(autouse=True)
def network_disk(monkeypatch):
    """Temporary folders count as lying on a network mount, whose refusals may pass."""
    monkeypatch.setattr(patient_read, "is_local", lambda path: False)
