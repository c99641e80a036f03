"""What can go wrong around keys and sealed prompts; no message ever holds a key or a prompt."""

from pathlib import Path

from schemas.codes import Code
from worker.errors import TidegateError


class KeyRefused(TidegateError):
    """A key file or its folder cannot be trusted as it is; the message says how to mend it.

    Nothing is ever mended without being asked: a key that others could read may be known to them.

    Attributes:
        path: The file or folder.
        reason: What is wrong: ``key-missing``, ``key-unreadable``, ``key-is-a-link``,
            ``key-not-a-file``, ``key-of-another-user``, ``key-wrong-mode``, ``key-linked-twice``,
            ``key-wrong-size``, ``key-not-random``; the same for the folder with ``key-dir-``,
            ``key-dir-unwritable``, ``key-dir-busy``; ``keys-unsupported``.
    """

    code = Code.FAILED_PRECONDITION
    reason = "key-refused"

    def __init__(self, path: Path, message: str, *, reason: str) -> None:
        self.path = path
        super().__init__(message, reason=reason)


class SealRefused(TidegateError):
    """A prompt was not sealed or not opened.

    Attributes:
        request_id: The turn it belongs to.
        reason: ``prompt-too-large``, ``not-sealed``, ``unsupported-seal``, ``wrong-key`` (sealed
            with another key of the same version), or ``seal-broken`` (changed, or sealed for
            another space, request or purpose).
    """

    code = Code.FAILED_PRECONDITION
    reason = "seal-refused"

    def __init__(self, request_id: str, message: str, *, reason: str) -> None:
        self.request_id = request_id
        super().__init__(message, reason=reason)
