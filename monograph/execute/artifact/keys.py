"""Keys that sign artifacts, and what can be said of a signature. Loads without torch.

A key is never written on a command line, where everybody on the machine can read it: it comes from a file that only its
owner can read, or from an environment variable.
"""

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass
from enum import StrEnum

from monograph.errors import ConfigError

KEY_VARIABLE = "MONOGRAPH_ARTIFACT_KEY"
"""The environment variable that holds the key, where no file does."""
MIN_KEY_BYTES = 16
_MAX_KEY_BYTES = 4096
_MAKE_ONE = "(umask 077; head -c 32 /dev/urandom | base64 > artifact.key)"


class Status(StrEnum):
    """What is known of an artifact's signature."""

    UNSIGNED = "unsigned"
    UNVERIFIED = "signed, not verified (no key given)"
    VERIFIED = "signed and verified"


@dataclass(frozen=True)
class Signature:
    """A status, and the key that it was verified with."""

    status: Status
    fingerprint: str = ""

    @property
    def is_verified(self) -> bool:
        """Whether somebody who has the key vouches for the artifact."""
        return self.status is Status.VERIFIED

    def __str__(self) -> str:
        return f"{self.status.value} with key {self.fingerprint}" if self.is_verified else self.status.value


def find_fingerprint(key: bytes) -> str:
    """Sixteen digits by which people can tell keys apart; they do not reveal the key."""
    return hashlib.sha256(b"monograph artifact key\n" + key).hexdigest()[:16]


def sign(content: bytes, key: bytes) -> str:
    """The HMAC-SHA256 of some content."""
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def is_signed_with(content: bytes, found: bytes, key: bytes) -> bool:
    """Whether a signature is that of a key."""
    return hmac.compare_digest(sign(content, key).encode(), found)


def read_key(key_file: str = "") -> bytes | None:
    """The key: the file's content, or the environment variable; None when neither is set."""
    if key_file:
        return _check_length(_read_file(key_file), f"the key file {key_file}")
    key = os.environb.get(KEY_VARIABLE.encode(), b"").strip()
    return _check_length(key, KEY_VARIABLE) if key else None


def need_key(key_file: str, purpose: str) -> bytes:
    """The key, for commands that can do nothing without one."""
    key = read_key(key_file)
    if key is None:
        raise ConfigError(
            f"{purpose} needs a key, and none is given",
            do=f"--key_file FILE, or the environment variable {KEY_VARIABLE}; make one: {_MAKE_ONE}",
        )
    return key


def _check_length(key: bytes, what: str) -> bytes:
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"{what} has a key of {len(key)} bytes",
            why=f"a key shorter than {MIN_KEY_BYTES} bytes can be guessed from a signature",
            do=f"make one: {_MAKE_ONE}",
        )
    return key


def _read_file(key_file: str) -> bytes:
    """A key file's content, if only its owner can read it."""
    try:
        file = os.open(key_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"the key file {key_file} cannot be read",
            why=error.strerror or str(error),
            do=f"--key_file and compile.artifact_key_file name a file that holds the key; make one: {_MAKE_ONE}",
        ) from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"the key file {key_file} is not a file", do=f"make one: {_MAKE_ONE}")
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077 or found.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"the key file {key_file} has mode {mode:04o} and belongs to user {found.st_uid}",
                why="a user who can read a key can sign with it, and one who can write it can replace it",
                do=f"chmod 600 {key_file}, as its owner",
            )
        return os.read(file, _MAX_KEY_BYTES).strip()
    finally:
        os.close(file)
