"""Compiled code belongs to the test that compiled it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def forget_compiled_code():
    """Tests count graphs: what another test compiled must not serve them."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
