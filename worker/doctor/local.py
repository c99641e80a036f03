"""What can be looked at on this machine: settings, folder, disk, private files, keys, SQLite."""

import os
import shlex
import shutil
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from schemas import tokens
from schemas.names import Names
from worker import identity
from worker.checkpoints import lost
from worker.doctor import databases
from worker.doctor.findings import Check, Finding, danger, fine, warning
from worker.sealing import keyfiles
from worker.sealing.errors import KeyRefused
from worker.settings import Settings, meant
from worker.spaces import space_dir

LEAST_FREE_BYTES: Final = 1024**3
LEAST_FREE_SHARE: Final = 0.05
WAL_RESET_FIXED: Final = (3, 51, 3)
"""First SQLite without the WAL-reset corruption; one connection keeps older ones safe."""

_PRIVATE: Final = ("identities/*.json", "identity.json", "broker.json", "broker/nats.conf")


def examine(settings: Settings, unknown: Sequence[str]) -> list[Finding]:
    """Look at this machine; changes nothing.

    Args:
        settings: The worker's settings.
        unknown: Variables that look like settings and are none.
    """
    directory = settings.data_dir
    findings = [_settings(unknown), _directory(directory), _disk(directory), _sqlite()]
    for space in settings.spaces:
        findings += databases.examine(space_dir(directory, space), Names(settings.root, space))
        findings += _lost(space_dir(directory, space), space)
    findings += _keys(keyfiles.default_dir(directory))
    findings += _private_files(directory)
    findings += _identities(directory)
    return findings


def _lost(directory: Path, space: str) -> Iterator[Finding]:
    try:
        found = lost.read(directory)
    except OSError:
        return  # Said of the directory itself.
    if found:
        yield warning(
            Check.CHECKPOINTS,
            f"the broker's store of {space} came back older: {len(found)} mints and extensions "
            "that this worker had seen are gone",
            "their runs wait for what does not exist any more, or for an earlier deadline",
            f"tidegate cp lost --space {space} lists them and what brings each back; then remove "
            f"{shlex.quote(str(directory / lost.FILE))}",
        )


def _settings(unknown: Sequence[str]) -> Finding:
    if not unknown:
        return fine(Check.SETTINGS, "every TIDEGATE_ variable is a setting")
    near = [name for one in sorted(unknown) if (name := meant(one)) is not None]
    which = f" ({', '.join(near)}?)" if near else ""
    return warning(
        Check.SETTINGS,
        f"{', '.join(sorted(unknown))}: no such setting",
        "a misspelt setting leaves its default in force",
        f"correct the name{which}; every setting: tidegate config show",
    )


def _directory(directory: Path) -> Finding:
    try:
        found = directory.stat()
    except OSError as error:
        return warning(
            Check.DATA_DIRECTORY,
            f"{directory} cannot be looked at: {os.strerror(error.errno or 0)}",
            "no ledger, journal or identity is here; the worker makes the folder when it starts",
            f"start the worker, or point TIDEGATE_DATA_DIR at the right folder (now {directory})",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return danger(
            Check.DATA_DIRECTORY,
            f"{directory} is open to other users (mode {mode:04o})",
            "keys, identities and the broker's password lie there",
            f"chmod 700 {shlex.quote(str(directory))}",
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        return danger(
            Check.DATA_DIRECTORY,
            f"{directory} cannot be written by this user",
            "the worker cannot keep its ledger and does not start",
            "run as the worker's user, or give it back: "
            f"chown -R $(id -u) {shlex.quote(str(directory))}",
        )
    return fine(Check.DATA_DIRECTORY, f"{directory} is private and writable")


def _disk(directory: Path) -> Finding:
    # Unlike Path.exists, a folder that is closed to us counts as none: look at what holds it.
    there = next(path for path in (directory, *directory.parents) if os.path.exists(path))
    usage = shutil.disk_usage(there)
    return judge_disk(usage.free, usage.total, f"where {directory} lies")


def judge_disk(free: int, total: int, where: str) -> Finding:
    """Judge how much of a disk is free.

    Args:
        free: Bytes.
        total: Bytes.
        where: For people.
    """
    found = f"{_size(free)} are free {where}"
    if free >= LEAST_FREE_BYTES and free >= total * LEAST_FREE_SHARE:
        return fine(Check.DISK_SPACE, found)
    find = danger if free < LEAST_FREE_BYTES // 4 else warning
    return find(
        Check.DISK_SPACE,
        found,
        "a full disk stops the fold: nothing is lost, but nothing is authorised either",
        "free space, or move TIDEGATE_DATA_DIR to a larger disk",
    )


def _size(count: int) -> str:
    mib = count // 1024**2
    return f"{mib} MiB" if mib < 10 * 1024 else f"{mib // 1024} GiB"


def _sqlite() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < WAL_RESET_FIXED:
        return fine(
            Check.SQLITE,
            f"SQLite {version} is inside the range of the WAL-reset fault; "
            "one exclusive connection per file, as used here, keeps clear of it",
        )
    return fine(Check.SQLITE, f"SQLite {version}")


def _keys(folder: Path) -> Iterator[Finding]:
    """The keys that seal prompts, by the very checks that reading one makes."""
    try:
        versions = keyfiles.versions(folder)
    except KeyRefused as refused:
        if refused.reason != "key-dir-missing":
            yield _bad_key(refused)
        return
    bad = False
    for version in versions:
        try:
            keyfiles.read(folder, version)
        except KeyRefused as refused:
            bad = True
            yield _bad_key(refused)
    if not bad:
        count = len(versions)
        words = "1 key file is" if count == 1 else f"{count} key files are"
        yield fine(Check.KEY_FILES, f"{words} whole and private")


def _bad_key(refused: KeyRefused) -> Finding:
    found, _, fix = refused.message.partition("; ")
    return danger(
        Check.KEY_FILES,
        found,
        "prompts that it sealed cannot be opened, or others may open them",
        fix or "see what holds the place of the key, and put the key back from a copy",
    )


def _private_files(directory: Path) -> Iterator[Finding]:
    """Identities and the broker's password must be their owner's alone."""
    loose: dict[Path, int] = {}
    looked = 0
    for pattern in _PRIVATE:
        for path in sorted(directory.glob(pattern)):
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError:
                continue  # it went, or its folder is closed to us and so to others
            looked += 1
            if mode & 0o077:
                loose[path] = mode
    for path, mode in loose.items():
        yield danger(
            Check.PRIVATE_FILES,
            f"{path} is open to other users (mode {mode:04o})",
            "whoever reads it can speak as its owner",
            _closed(path),
        )
    if looked and not loose:
        words = "1 private file is its" if looked == 1 else f"{looked} private files are their"
        yield fine(Check.PRIVATE_FILES, f"{words} owner's alone")


def _closed(path: Path) -> str:
    """How a private file is closed, and what ends what others may have read in it."""
    quoted = shlex.quote(str(path))
    if path.parent.name == "identities" or path.name == "identity.json":
        return (
            f"chmod 600 {quoted}; if others may have read it, begin a new life once nothing "
            f"waits for this one: rm {quoted}"
        )
    return f"chmod 600 {quoted}, and start the worker again: its broker gets a new password"


def _identities(directory: Path) -> Iterator[Finding]:
    """Identities that are kept here, by the very checks that using one makes."""
    stems = (path.stem for path in sorted(directory.glob("identities/*.json")))
    named = [stem for stem in stems if tokens.is_principal(stem)]
    reads = [(directory / "identity.json", partial(identity.default, directory))]
    reads += [
        (directory / "identities" / f"{one}.json", partial(identity.named, directory, one))
        for one in named
    ]
    whole, bad = 0, False
    for path, read in reads:
        try:
            whole += read() is not None
        except identity.OpenToOthers:
            bad = True  # a private file's finding already
        except identity.BadIdentity as error:
            bad = True
            yield danger(
                Check.IDENTITIES,
                error.message.partition("; ")[0],
                "commands refuse it, and its owner cannot resume or settle what it holds",
                f"put it back from a copy; without one: rm {shlex.quote(str(path))}; a new "
                "identity is made, and what the old one held ends at its deadline",
            )
    if whole and not bad:
        words = "1 identity is" if whole == 1 else f"{whole} identities are"
        yield fine(Check.IDENTITIES, f"{words} whole")
