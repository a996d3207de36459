"""On which interface gloo listens: the loopback for ranks of one machine, until replicas elsewhere need them."""

import pytest

from monograph.parallel import interfaces
from monograph.parallel.interfaces import GLOO_INTERFACE, find_interface, find_interface_address, leave_loopback


def test_the_loopback_is_found_by_its_address_and_by_its_name():
    assert find_interface_address(find_interface("127.0.0.1")) == "127.0.0.1"
    assert find_interface("203.0.113.7") == find_interface_address("no-such-0") == ""


@pytest.mark.parametrize(
    ("before", "address", "after"),
    [
        ("lo", "10.0.0.2", "eth7"),
        ("lo", "10.0.0.9", None),
        ("lo", "127.0.0.1", "lo"),
        ("eth1", "10.0.0.2", "eth1"),
        (None, "10.0.0.2", None),
    ],
    ids=["replicas elsewhere", "an address of no interface", "replicas here", "the user's choice", "gloo's choice"],
)
def test_gloo_leaves_the_loopback_for_replicas_on_other_machines_only(before, address, after, monkeypatch):
    monkeypatch.setattr(interfaces.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth7")])
    monkeypatch.setattr(interfaces, "find_interface_address", {"lo": "127.0.0.1", "eth7": "10.0.0.2"}.get)
    monkeypatch.delenv(GLOO_INTERFACE, raising=False)
    if before is not None:
        monkeypatch.setenv(GLOO_INTERFACE, before)
    leave_loopback(address)
    assert interfaces.os.environ.get(GLOO_INTERFACE) == after
