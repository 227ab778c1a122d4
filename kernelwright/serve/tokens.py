"""Who may submit: names and tokens, of which only hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from kernelwright.errors import TokensUnusable
from kernelwright.settings import SERVICE_TOKEN

#: Characters of a token; who needs fewer may as well leave it out.
LEAST_CHARACTERS = 16
#: Name of the one client whose token stands in the environment.
ONLY = "environment"


class Tokens:
    """The clients of a service: a name for each token."""

    def __init__(self, named: dict[str, str]) -> None:
        self._hashes = {name: _hash(token) for name, token in named.items()}

    def __len__(self) -> int:
        return len(self._hashes)

    def owner(self, token: str) -> str | None:
        """The name of a token's client, or None. Takes as long for a wrong token as for a right one."""
        given, found = _hash(token), None
        for name, own in self._hashes.items():
            if hmac.compare_digest(own, given):
                found = name
        return found


def read_tokens(file: Path | None) -> Tokens:
    """The tokens of a file, with a line ``NAME TOKEN`` for each client; without a file that of the environment, which
    no process that is started from now on gets. Raises TokensUnusable (KW752)."""
    if file is None:
        token = os.environ.pop(SERVICE_TOKEN.name, "").strip()
        if token and len(token) < LEAST_CHARACTERS:
            raise TokensUnusable(path=SERVICE_TOKEN.name, found=f"it has less than {LEAST_CHARACTERS} characters")
        return Tokens({ONLY: token} if token else {})
    os.environ.pop(SERVICE_TOKEN.name, None)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TokensUnusable(path=file, found=f"it cannot be read ({error})") from error
    named: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        found = ("it is not a name and a token" if len(words) != 2
                 else f"its token has less than {LEAST_CHARACTERS} characters" if len(words[1]) < LEAST_CHARACTERS
                 else f"the name {words[0]} has a token already" if words[0] in named
                 else "another name has its token" if words[1] in named.values() else "")
        if found:
            raise TokensUnusable(path=f"{file}:{number}", found=found)
        named[words[0]] = words[1]
    if not named:
        raise TokensUnusable(path=file, found="it has no token")
    return Tokens(named)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
