"""Who speaks from this machine: a principal and a uid, kept so that a holder survives a restart.

The first identity is the default one, ``<data dir>/identity.json``; others lie beside it in
``identities/<principal>.json``. A reserved name (``_op``) is never the default one. Files are
readable by their owner only.
"""

import base64
import contextlib
import errno
import json
import os
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas import tokens
from schemas.codes import BadInput, Code
from schemas.subjects import Speaker
from worker import files
from worker.errors import TidegateError

UID_BYTES = 16
ROUNDS = 3
"""Whoever loses both places to others finds its principal's identity in the third round."""

RESERVED = "_"
"""How names begin that are given to a role; see ``schemas.roles``."""


class BadIdentity(TidegateError):
    """The identity cannot be used; the message says what to do."""

    code = Code.FAILED_PRECONDITION
    reason = "bad-identity"


class NoName(BadIdentity):
    """A principal matches [A-Za-z0-9_-]{1,64}."""

    code = Code.BAD_REQUEST
    reason = "bad-token"


class OpenToOthers(BadIdentity):
    """Others may read the file, and so speak as its owner."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An identity and where it is kept.

    Attributes:
        speaker: The identity.
        path: Its file.
        created: Whether this call made it.
    """

    speaker: Speaker
    path: Path
    created: bool


def new_uid(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """A new uid: 26 characters of lower-case base32, 128 random bits."""
    return base64.b32encode(random_bytes(UID_BYTES)).decode().rstrip("=").lower()


def find(data_dir: Path, principal: str | None) -> Kept | None:
    """The kept identity of a principal, or the default one.

    Args:
        data_dir: The data folder.
        principal: Whose; ``None`` asks for the default one.

    Raises:
        BadIdentity: If its file is damaged or open to others.
    """
    first = default(data_dir)
    if first is not None and principal in (None, first.speaker.principal):
        return first
    return None if principal is None else named(data_dir, principal)


def default(data_dir: Path) -> Kept | None:
    """The default identity, if there is one.

    Raises:
        BadIdentity: As ``find``.
    """
    return _read(data_dir / "identity.json")


def named(data_dir: Path, principal: str) -> Kept | None:
    """The identity kept beside the default one for a principal.

    Raises:
        BadIdentity: As ``find``.
    """
    kept = _read(_path_of(data_dir, principal))
    if kept is not None and kept.speaker.principal != principal:
        raise BadIdentity(
            f"{kept.path} holds the identity of {kept.speaker.principal}, not of {principal}"
        )
    return kept


def init(data_dir: Path, principal: str, uid: str, *, may_be_default: bool = True) -> Kept:
    """Keep an identity, unless that principal has one already.

    Of several processes that do this at once, one writes and all get what it wrote; a crash leaves
    the old state or the new one.

    Args:
        data_dir: The data folder; made if it is missing.
        principal: The name.
        uid: A new uid, used if there is none yet.
        may_be_default: Whether it becomes the default one if there is none yet.

    Raises:
        BadIdentity: If the name does not match its grammar or an existing file is unusable.
    """
    try:
        speaker = Speaker(principal, uid)
    except BadInput:
        raise NoName from None
    content = json.dumps({"v": 1, "principal": speaker.principal, "uid": speaker.uid}) + "\n"
    # Read once a round: were it read again to choose the place, one that came meanwhile would make
    # a second identity of the same principal.
    for _ in range(ROUNDS):
        first = default(data_dir)
        if first is not None and first.speaker.principal == principal:
            return first
        if (kept := named(data_dir, principal)) is not None:
            return kept
        reserved = principal.startswith(RESERVED)
        becomes_default = may_be_default and first is None and not reserved
        path = data_dir / "identity.json" if becomes_default else _path_of(data_dir, principal)
        try:
            if files.create_private(path, content.encode()):
                return Kept(speaker, path, created=True)
        except OSError as error:
            raise BadIdentity(
                f"an identity cannot be kept in {data_dir}: {os.strerror(error.errno or 0)}; name "
                "another folder (TIDEGATE_DATA_DIR), or who speaks and its life (--as NAME.UID)"
            ) from error
    raise BadIdentity(f"the identity of {principal} could not be kept in {data_dir}")


def replica_id(data_dir: Path, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """The random id of the worker that owns a data directory; made once and kept.

    It only tells workers apart: what is kept there and is none is replaced, and on a full disk a
    new one serves for this life.

    Raises:
        OSError: If the file can be neither read nor written.
    """
    path = data_dir / "replica"
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        kept = path.read_text(encoding="utf-8").strip()
        if tokens.is_uid(kept):
            return kept
    made = new_uid(random_bytes)
    try:
        files.replace_private(path, made.encode())
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return made


def _path_of(data_dir: Path, principal: str) -> Path:
    if not tokens.is_principal(principal):
        raise NoName
    return data_dir / "identities" / f"{principal}.json"


def _read(path: Path) -> Kept | None:
    try:
        raw = path.read_bytes()
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadIdentity(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    if sys.platform != "win32" and mode & 0o077:
        raise OpenToOthers(f"{path} is open to others; run: chmod 600 {shlex.quote(str(path))}")
    try:
        value = json.loads(raw)
        if value["v"] != 1:
            raise BadIdentity(f"{path} is of another version of tidegate")
        return Kept(Speaker(value["principal"], value["uid"]), path, created=False)
    except (ValueError, KeyError, TypeError) as error:
        raise BadIdentity(
            f"{path} is not an identity file; put it back from a copy, or without one remove it: "
            "a new life begins"
        ) from error
