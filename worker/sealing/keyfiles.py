"""Key files: 32 random bytes each, private, whole or absent, and never silently repaired.

``<folder>/payload-<version>.key``, mode 0600, in a folder of mode 0700; both ours, neither a
symbolic link, the file with one hard link (spec/admission.md, Payloads). Every check is made on the
open descriptor whose bytes are then used, so what was checked is what is read.
"""

import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from worker.sealing.errors import KeyRefused

if sys.platform != "win32":
    import fcntl

KEY_BYTES: Final = 32
MAX_VERSION: Final = 2**31 - 1

_DIR_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_NAME: Final = re.compile(r"payload-([1-9][0-9]{0,9})\.key")
_TEMPORARY: Final = re.compile(r"\.payload-[0-9]+\.key\.[0-9a-f]{16}")
_LOCK: Final = ".lock"
_LOCK_WAIT_S: Final = 10.0
_LOCK_POLL_S: Final = 0.01


def default_dir(data_dir: Path) -> Path:
    """Where keys are kept by default: ``<data dir>/keys``."""
    return data_dir / "keys"


def path_of(folder: Path, version: int) -> Path:
    """The file of a version."""
    return folder / f"payload-{version}.key"


def versions(folder: Path) -> tuple[int, ...]:
    """Versions that have a file, lowest first; whether each is usable is seen when it is read.

    Raises:
        KeyRefused: If the folder is missing or cannot be trusted.
    """
    with _opened(folder) as descriptor:
        names = os.listdir(descriptor)
    found = (int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
    return tuple(sorted(version for version in found if version <= MAX_VERSION))


def read(folder: Path, version: int) -> bytes:
    """The key of a version.

    Raises:
        KeyRefused: If the file is missing or anything about it is not as it must be.
    """
    with _opened(folder) as descriptor:
        return _read(descriptor, path_of(folder, version))


def create(folder: Path, version: int, key: bytes) -> bool:
    """Create the file of a version, and the folder if need be, unless the file exists.

    Of several processes that do this at once, one creates and the others find its file. After a
    crash there is the whole file or none, and it has been on the disk before this returns.

    Args:
        folder: The key folder.
        version: 1 or higher.
        key: 32 random bytes.

    Returns:
        Whether this call created it. An existing file is not looked at; ``read`` judges it.

    Raises:
        KeyRefused: If the folder cannot be trusted or written to.
    """
    if len(key) != KEY_BYTES or not 1 <= version <= MAX_VERSION:
        raise ValueError(f"a key has {KEY_BYTES} bytes and a version of 1..{MAX_VERSION}")
    _make_folder(folder)
    name = path_of(folder, version).name
    with _opened(folder) as descriptor:
        try:
            with _locked(folder, descriptor):
                if _exists(name, descriptor):
                    return False
                _sweep(descriptor)
                # A rename, since a link would show the file with two names for a moment, or for
                # ever after a crash; the lock is what makes the rename unable to replace a key.
                temporary = f".{name}.{secrets.token_hex(8)}"
                _write(temporary, key, descriptor)
                os.rename(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                os.fsync(descriptor)
        except OSError as error:
            raise KeyRefused(
                folder,
                f"no key can be written to {folder}: {_cause(error)}",
                reason="key-dir-unwritable",
            ) from None
    return True


def _make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=_DIR_MODE)
        folder.mkdir(mode=_DIR_MODE)
    except FileExistsError:
        return
    except OSError as error:
        raise KeyRefused(
            folder,
            f"the key folder {folder} cannot be made: {_cause(error)}",
            reason="key-dir-unwritable",
        ) from None
    folder.chmod(_DIR_MODE)  # an umask may have taken bits from the folder just made


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder's descriptor, checked."""
    if sys.platform == "win32":
        raise KeyRefused(
            folder, "key files need a POSIX system's permissions", reason="keys-unsupported"
        )
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unopened(folder, error, "the key folder", "key-dir") from None
    try:
        info = os.fstat(descriptor)
        if info.st_uid != os.geteuid():
            raise _of_another(folder, info, "the key folder", "key-dir")
        mode = stat.S_IMODE(info.st_mode) & 0o777  # set-group-ID may come from the parent folder
        if mode != _DIR_MODE:
            raise KeyRefused(
                folder,
                f"the key folder {folder} has mode {mode:04o} instead of 0700, so its keys may be "
                f"known to others; if they are not, run: chmod 700 {folder}; "
                "else make a new key as well: tidegate keys rotate",
                reason="key-dir-wrong-mode",
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _read(folder: int, path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path.name, flags, dir_fd=folder)
    except OSError as error:
        raise _unopened(path, error, "the key file", "key") from None
    try:
        info = os.fstat(descriptor)
        _check(path, info)
        key = os.read(descriptor, KEY_BYTES + 1)
    except OSError as error:
        raise _unopened(path, error, "the key file", "key") from None
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        raise _wrong_size(path, len(key))
    if key.count(key[0]) == KEY_BYTES:
        raise KeyRefused(
            path,
            f"the key file {path} holds one byte repeated, as a damaged file does; " + _RESTORE,
            reason="key-not-random",
        )
    return key


_RESTORE: Final = (
    "put the file back from a copy, or make a new key with: tidegate keys rotate "
    "(what was sealed with the lost one stays closed)"
)


def _check(path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise KeyRefused(
            path,
            f"the key file {path} is not a regular file; " + _RESTORE,
            reason="key-not-a-file",
        )
    if info.st_uid != os.geteuid():
        raise _of_another(path, info, "the key file", "key")
    mode = stat.S_IMODE(info.st_mode)
    if mode != _FILE_MODE:
        raise KeyRefused(
            path,
            f"the key file {path} has mode {mode:04o} instead of 0600; if nobody else can have "
            f"read it, run: chmod 600 {path}; else also: tidegate keys rotate",
            reason="key-wrong-mode",
        )
    if info.st_nlink != 1:
        raise KeyRefused(
            path,
            f"the key file {path} has {info.st_nlink} names (hard links), so it can be reached "
            f"from elsewhere; find them with: find / -xdev -samefile {path}; "
            "remove all but this one",
            reason="key-linked-twice",
        )
    if info.st_size != KEY_BYTES:
        raise _wrong_size(path, info.st_size)


def _wrong_size(path: Path, size: int) -> KeyRefused:
    return KeyRefused(
        path,
        f"the key file {path} has {size} bytes instead of {KEY_BYTES}; " + _RESTORE,
        reason="key-wrong-size",
    )


def _of_another(path: Path, info: os.stat_result, what: str, prefix: str) -> KeyRefused:
    return KeyRefused(
        path,
        f"{what} {path} belongs to user {info.st_uid}, but this process runs as user "
        f"{os.geteuid()}; run as its owner, or use a folder of your own",
        reason=f"{prefix}-of-another-user",
    )


def _unopened(path: Path, error: OSError, what: str, prefix: str) -> KeyRefused:
    match error.errno:
        case errno.ENOENT:
            return KeyRefused(
                path,
                f"{what} {path} does not exist; run: tidegate keys init, "
                "or copy it from where the prompt was sealed",
                reason=f"{prefix}-missing",
            )
        case errno.ELOOP:
            return _is_a_link(path, what, prefix)
        case errno.ENOTDIR if path.is_symlink():
            return _is_a_link(path, what, prefix)
        case errno.ENOTDIR:
            return KeyRefused(
                path, f"{what} {path} is not a folder; move it away", reason=f"{prefix}-not-a-dir"
            )
        case errno.ENXIO:
            return KeyRefused(
                path, f"{what} {path} is not a regular file", reason=f"{prefix}-not-a-file"
            )
    return KeyRefused(
        path, f"{what} {path} cannot be read: {_cause(error)}", reason=f"{prefix}-unreadable"
    )


def _is_a_link(path: Path, what: str, prefix: str) -> KeyRefused:
    return KeyRefused(
        path,
        f"{what} {path} is a symbolic link; name the real place instead, "
        "or move what it points to here",
        reason=f"{prefix}-is-a-link",
    )


@contextmanager
def _locked(folder: Path, descriptor: int) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(_LOCK, flags, _FILE_MODE, dir_fd=descriptor)
    try:
        waited_until = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= waited_until:
                    raise KeyRefused(
                        folder,
                        f"another process has been writing to {folder} for "
                        f"{_LOCK_WAIT_S:.0f} s; look for a stopped tidegate",
                        reason="key-dir-busy",
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(lock)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _sweep(folder: int) -> None:
    """Remove what a creator that died left behind; it was never anybody's key."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            os.unlink(name, dir_fd=folder)


def _write(name: str, content: bytes, folder: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, _FILE_MODE, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, _FILE_MODE)  # an umask may have taken bits
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _cause(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else "unknown error"
