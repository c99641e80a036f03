"""Reasons of what a process that runs turns meets: prompts, evidence, adapters, its connector."""

from typing import Final

from schemas.codes import Code
from schemas.reasons.kinds import Group, Reason, Retry

_LATER: Final = (Code.UNAVAILABLE,)
_FIRST: Final = (Code.FAILED_PRECONDITION,)


def _of_path(prefix: str, name: str) -> tuple[Reason, ...]:
    """Reasons that a key file and its folder share."""
    return (
        Reason(
            f"{prefix}-missing",
            _FIRST,
            f"The {name} does not exist.",
            "`tidegate keys init`, or copy it from where the prompt was sealed.",
            Retry.AGAIN,
        ),
        Reason(
            f"{prefix}-unreadable",
            _FIRST,
            f"The {name} cannot be read.",
            "Run as its owner.",
            Retry.AGAIN,
        ),
        Reason(
            f"{prefix}-is-a-link",
            _FIRST,
            f"The {name} is a symbolic link.",
            "Name the real place, or move what it points to here.",
            Retry.AGAIN,
        ),
        Reason(
            f"{prefix}-not-a-dir",
            _FIRST,
            f"On the way to the {name} lies something that is no folder.",
            "Move it away.",
            Retry.AGAIN,
        ),
        Reason(
            f"{prefix}-not-a-file",
            _FIRST,
            f"The {name} is a device, a socket or a pipe.",
            "Move it away.",
            Retry.AGAIN,
        ),
        Reason(
            f"{prefix}-of-another-user",
            _FIRST,
            f"The {name} belongs to another user.",
            "Run as its owner, or use a folder of your own.",
            Retry.AGAIN,
        ),
        Reason(
            f"{prefix}-wrong-mode",
            _FIRST,
            f"The {name} can be read by others, so its key may be known.",
            "`chmod 600` the file, `chmod 700` the folder; if somebody can have read it, also "
            "`tidegate keys rotate`.",
            Retry.AGAIN,
        ),
    )


SEALING: Final = Group(
    "Keys and sealed prompts",
    "Raised where prompts are sealed and opened, which is never the worker. Nothing is repaired "
    "without being asked.",
    (
        Reason(
            "no-sealer",
            _FIRST,
            "A turn was given a prompt, and the connector has no sealer.",
            "`Connector(…, sealer=…)`.",
            Retry.AGAIN,
        ),
        Reason(
            "prompt-too-large",
            _FIRST,
            "A prompt has more than 512 KiB.",
            "Send a reference to it.",
            Retry.NO,
        ),
        Reason(
            "payload-taken",
            (Code.CONFLICT,),
            "Another prompt was put for this request, or this one was dispatched and destroyed.",
            "Another turn needs another request id.",
            Retry.NO,
        ),
        Reason(
            "payload-unknown",
            _LATER,
            "The broker did not acknowledge the prompt; what was put expires by itself.",
            "Put it again; the same prompt is recognised.",
            Retry.AGAIN,
        ),
        Reason(
            "seal-refused",
            _FIRST,
            "A prompt was not sealed or not opened; the message says why.",
            "Do what the message says.",
            Retry.NO,
        ),
        Reason(
            "not-sealed",
            _FIRST,
            "The bytes are no sealed prompt.",
            "Look at who wrote them.",
            Retry.NO,
        ),
        Reason(
            "unsupported-seal",
            _FIRST,
            "The prompt is sealed in a format this version does not read.",
            "Open it with the version that sealed it.",
            Retry.NO,
        ),
        Reason(
            "wrong-key",
            _FIRST,
            "The prompt was sealed with another key of the same version.",
            "Copy the key files from where it was sealed.",
            Retry.AGAIN,
        ),
        Reason(
            "seal-broken",
            _FIRST,
            "The sealed prompt was changed, or sealed for another space, request or purpose.",
            "Do not use it; find out who can write to the payload bucket.",
            Retry.NO,
        ),
        Reason(
            "key-refused",
            _FIRST,
            "A key file or its folder cannot be trusted; the message says how to mend it.",
            "Do what the message says.",
            Retry.AGAIN,
        ),
        *_of_path("key", "key file"),
        Reason(
            "key-linked-twice",
            _FIRST,
            "The key file has a second name (hard link).",
            "Find and remove the other names.",
            Retry.AGAIN,
        ),
        Reason(
            "key-wrong-size",
            _FIRST,
            "The key file has not 32 bytes.",
            "Put it back from a copy, or `tidegate keys rotate`.",
            Retry.AGAIN,
        ),
        Reason(
            "key-not-random",
            _FIRST,
            "The key file holds one byte repeated, as a damaged file does.",
            "Put it back from a copy, or `tidegate keys rotate`.",
            Retry.AGAIN,
        ),
        *_of_path("key-dir", "key folder"),
        Reason(
            "key-dir-unwritable",
            _FIRST,
            "No key can be written to the key folder.",
            "Give this user the folder, or free space.",
            Retry.AGAIN,
        ),
        Reason(
            "key-dir-busy",
            _FIRST,
            "Another process has been writing to the key folder for ten seconds.",
            "Look for a stopped `tidegate keys`.",
            Retry.AGAIN,
        ),
        Reason(
            "keys-unsupported",
            _FIRST,
            "Key files need a POSIX system's permissions.",
            "Seal on such a system.",
            Retry.NO,
        ),
    ),
)

EVIDENCE: Final = Group(
    "Process evidence",
    "Raised where a process is to be named or looked at. Without evidence everything works, but "
    "silence frees no seat that may have been dispatched.",
    (
        Reason(
            "no-evidence",
            _FIRST,
            "This machine or process cannot tell who is alive; the message says why.",
            "Do what the message says.",
            Retry.AGAIN,
        ),
        Reason(
            "not-linux",
            _FIRST,
            "Process evidence needs Linux.",
            "Run connectors on Linux, or resolve by hand.",
            Retry.NO,
        ),
        Reason("proc-unreadable", _FIRST, "`/proc` cannot be read.", "Mount it.", Retry.AGAIN),
        Reason(
            "proc-of-another-namespace",
            _FIRST,
            "`/proc` shows another pid namespace than this process's own.",
            "Mount a `/proc` of its own namespace.",
            Retry.AGAIN,
        ),
        Reason(
            "time-namespace",
            _FIRST,
            "This process's time namespace is shifted by a fraction of a clock tick, so start "
            "times cannot be compared.",
            "Look from outside of it.",
            Retry.AGAIN,
        ),
        Reason(
            "no-host-id",
            _FIRST,
            "This machine has no machine id, as in most containers.",
            "Give everything on it the same `TIDEGATE_HOST`.",
            Retry.AGAIN,
        ),
        Reason(
            "process-gone",
            _FIRST,
            "The process ended before it could be named.",
            "Name the one that lives.",
            Retry.AGAIN,
        ),
        Reason(
            "process-unreadable",
            _FIRST,
            "The process cannot be identified by this user.",
            "Look as its owner, as root, or with `CAP_SYS_PTRACE`.",
            Retry.AGAIN,
        ),
        Reason(
            "process-unstable",
            _FIRST,
            "The process keeps changing while it is looked at.",
            "Look again.",
            Retry.AGAIN,
        ),
        Reason(
            "not-listed",
            _LATER,
            "An observer could not list the turns to look at.",
            "Nothing; it looks again.",
            Retry.AGAIN,
        ),
    ),
)

ADAPTERS: Final = Group(
    "Framework adapters",
    "Raised by `worker.adapters`, beside what checkpoints say.",
    (
        Reason(
            "missing-extra",
            _FIRST,
            "The framework that the adapter is for is not installed.",
            "Install the extra that the message names.",
            Retry.AGAIN,
        ),
        Reason(
            "bad-question",
            (Code.BAD_REQUEST,),
            "What a run asks does not fit into a prompt; nothing was minted.",
            "Mend the field that the message names.",
            Retry.AGAIN,
        ),
        Reason(
            "question-changed",
            (Code.CONFLICT,),
            "The run, repeated, asks something else than its checkpoint was minted for.",
            "Ask the same thing of the same holder when a run is repeated.",
            Retry.NO,
        ),
        Reason(
            "answer-hidden",
            (Code.PERMISSION_DENIED,),
            "The prompt or answer is not shown to this principal.",
            "Speak as the principal that minted it.",
            Retry.AGAIN,
        ),
        Reason(
            "nothing-to-run",
            (Code.NOT_FOUND,),
            "Nothing of this run is stored, and it was given no input.",
            "Give it an input.",
            Retry.AGAIN,
        ),
        Reason(
            "busy",
            _LATER,
            "Another process runs this, or one that has just died did; nothing was done.",
            "Try again later.",
            Retry.AGAIN,
        ),
        Reason(
            "run-in-doubt",
            _FIRST,
            "The run was cut off there, and nobody knows which tools were called.",
            "Look, and run it again from the last pause if that does no harm.",
            Retry.AGAIN,
        ),
    ),
)

CONNECTOR: Final = Group(
    "The connector library",
    "Raised by `worker.connector`, beside the results of its verbs.",
    (
        Reason(
            "turn-not-run",
            _FIRST,
            "A turn could not be run; the message says why.",
            "Do what the message says.",
            Retry.NO,
        ),
        Reason(
            "not-admitted",
            _FIRST,
            "The turn gets no seat here: another connector runs it, or it has ended.",
            "Another turn needs another request id.",
            Retry.NO,
        ),
        Reason(
            "lease-lost",
            (Code.FENCED,),
            "The seat is no longer ours; `why` says what took it.",
            "Stop the turn at once. It goes on elsewhere, or ended.",
            Retry.NO,
        ),
        Reason(
            "no-seat",
            _FIRST,
            "A verb was asked for before the turn has its seat.",
            "Enter the block first.",
            Retry.AGAIN,
        ),
        Reason(
            "already-running",
            _FIRST,
            "This connector runs a block for the turn already.",
            "One block per turn.",
            Retry.NO,
        ),
        Reason(
            "connector-closed",
            _FIRST,
            "The connector is being closed.",
            "Run the turn in the next life; what is still queued is taken over.",
            Retry.AGAIN,
        ),
    ),
)
