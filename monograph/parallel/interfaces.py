"""Network interfaces of this machine, and the one on which gloo listens."""

import fcntl
import os
import socket
import struct

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""gloo's own variable; unset, it listens on the address that the host's name leads to."""
LOOPBACKS = ("lo", "lo0")
_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux: the IPv4 address of an interface."""


def find_interface_address(name: str) -> str:
    """The IPv4 address of an interface; "" when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def find_interface(address: str) -> str:
    """The interface with an IPv4 address; "" when there is none."""
    return next((name for _, name in socket.if_nameindex() if find_interface_address(name) == address), "")


def leave_loopback(address: str) -> None:
    """Let gloo listen on the interface of an address, when ranks that were confined to the loopback need others."""
    if os.environ.get(GLOO_INTERFACE) not in LOOPBACKS or address.startswith("127."):
        return
    del os.environ[GLOO_INTERFACE]
    if name := find_interface(address):
        os.environ[GLOO_INTERFACE] = name
