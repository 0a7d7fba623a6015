"""Sealing: secrets are stored only under AES-256-GCM, with a key that is never stored beside them.

A sealed value is a version byte, four bytes that identify the key, a nonce of twelve and the ciphertext with its tag.
The name under which it is stored is authenticated with it, so that no sealed value can replace another.
"""

import os
import subprocess
from hashlib import sha256
from pathlib import Path

from roost.model.errors import Invalid
from roost.server.observability import logging
from roost.server.private_files import readable_by_others

KEY_BYTES = 32
VERSION = b"\x01"
HEADER_BYTES = 5
NONCE_BYTES = 12
COMMAND_S_MAX = 30.0  # a key service over a network; longer, and the server would seem not to start


log = logging.logger("seal")


class Unsealable(Exception):
    """Sealed with another key, under another name, or altered."""


class Seal:
    """Seals with the first key, which is the newest; opens with any."""

    def __init__(self, *keys: bytes) -> None:
        # Imported here: a server that seals nothing starts 30 ms sooner.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise Invalid("key", f"a key has {KEY_BYTES} bytes")
        self._newest = _key_id(keys[0])
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}

    def seal(self, name: str, value: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return VERSION + self._newest + nonce + self._ciphers[self._newest].encrypt(nonce, value, name.encode())

    def open(self, name: str, sealed: bytes) -> bytes:
        """The value that was sealed under this name. Raises Unsealable."""
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(sealed[1:HEADER_BYTES])
        if sealed[:1] != VERSION or cipher is None:
            raise Unsealable(f"{name} was sealed with a key that is not here")
        nonce, content = sealed[HEADER_BYTES : HEADER_BYTES + NONCE_BYTES], sealed[HEADER_BYTES + NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, content, name.encode())
        except InvalidTag:
            raise Unsealable(f"{name} is not what was sealed") from None

    def is_newest(self, sealed: bytes) -> bool:
        return sealed[1:HEADER_BYTES] == self._newest


def key_from_file(path: Path) -> bytes:
    """The key in a file, as 64 hexadecimal digits. Raises Invalid."""
    try:
        if warning := readable_by_others(path):
            log.warning("a key is not private", file=str(path), warning=warning)
        return _key(path.read_text(encoding="ascii"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid("key_file", f"{path} cannot be read: {error}") from None


def key_from_command(command: str) -> bytes:
    """The key that a command prints, as 64 hexadecimal digits. Raises Invalid."""
    try:
        done = subprocess.run(command, shell=True, capture_output=True, timeout=COMMAND_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise Invalid("key_command", f"the command has not ended after {COMMAND_S_MAX:.0f} s") from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()[-200:]
        raise Invalid("key_command", f"the command has failed with {done.returncode}: {message}")
    return _key(done.stdout.decode(errors="replace"), "the output of the command")


def make_key_file(path: Path) -> bytes:
    """The key in a file, made if it is missing."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return key_from_file(path)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(os.urandom(KEY_BYTES).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return key_from_file(path)


def _key(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise Invalid("key", f"{where} is not {2 * KEY_BYTES} hexadecimal digits; `openssl rand -hex 32` makes some")
    return key


def _key_id(key: bytes) -> bytes:
    return sha256(b"roost key " + key).digest()[: HEADER_BYTES - 1]
