"""Reasons of what a worker or a command line runs into besides its commands."""

from typing import Final

from schemas.codes import Code
from schemas.reasons.kinds import Group, Reason, Retry

_LATER: Final = (Code.UNAVAILABLE,)
_FIRST: Final = (Code.FAILED_PRECONDITION,)

FOLD: Final = Group(
    "The fold stands still",
    "Shown by `tidegate status`, `/readyz` and the log, and by queries about admission and caps. "
    "Nothing is half done and nothing is authorised; commands stay in the log and are judged "
    "later. The [runbook](runbook.md#tidegatefoldstopped) has more.",
    (
        Reason(
            "storage-full",
            _LATER,
            "The disk is full; the batch was rolled back.",
            "Free space; it goes on by itself.",
            Retry.SAME,
        ),
        Reason(
            "clock-behind",
            _LATER,
            "A command is stamped more than a minute ahead of this machine's clock, and the "
            "broker's clock agrees with it.",
            "Compare both clocks, and set the wrong one right; it goes on by itself.",
            Retry.SAME,
        ),
        Reason(
            "stamp-ahead",
            _LATER,
            "A command is stamped with an instant that the broker's own clock contradicts again "
            "and again: that clock had jumped.",
            "A single replica goes on by itself in a new epoch that does not believe the stamp; "
            "else `tidegate ledger rebase`. Under a ruleset before 3 only waiting helps.",
            Retry.SAME,
        ),
        Reason(
            "log-regressed",
            _LATER,
            "The log is an older copy of the one that was folded.",
            "A single replica rebases by itself; else, with every replica back, "
            "`tidegate ledger rebase`.",
            Retry.SAME,
        ),
        Reason(
            "behind-the-log",
            _LATER,
            "The log was trimmed beyond this replica and no snapshot reaches into it.",
            "`tidegate ledger snapshot` on another replica, then start this one again.",
            Retry.SAME,
        ),
        Reason(
            "diverged",
            (Code.INTERNAL, Code.UNAVAILABLE),
            "Two replicas derived different things from the same log; one of them is wrong, and "
            "every replica stops.",
            "Leave them running. `tidegate ledger verify --replica ID` replays the log and says of "
            "each whether it is right; then `tidegate ledger rebase --replica ID` with one that "
            "is.",
            Retry.SAME,
        ),
        Reason(
            "unknown-ruleset",
            _LATER,
            "A ruleset is in force that this version does not know.",
            "Deploy a version that does.",
            Retry.SAME,
        ),
        Reason(
            "fold-failed",
            (Code.INTERNAL, Code.UNAVAILABLE),
            "A transition broke; the batch was rolled back. The log names sequence and cause.",
            "Deploy the version before, and report it.",
            Retry.SAME,
        ),
        Reason(
            "rebase",
            _LATER,
            "The log begins another epoch here; the replica is loading its snapshot.",
            "Nothing; it goes on by itself.",
            Retry.SAME,
        ),
        Reason(
            "log-gap",
            _LATER,
            "The log was not delivered in unbroken order; what came after is discarded and read "
            "again.",
            "Nothing; it goes on by itself.",
            Retry.SAME,
        ),
        Reason(
            "space-key-damaged",
            _LATER,
            "What is kept as the space's key is not 32 bytes.",
            "Restore the worker's bucket; somebody else wrote there.",
            Retry.SAME,
        ),
        Reason(
            "ledger-unavailable",
            _LATER,
            "The ledger cannot go on; the message says why.",
            "Do what the message says.",
            Retry.SAME,
        ),
    ),
)

OPERATING: Final = Group(
    "Operating the ledger",
    "Answers to `tidegate ledger …` and to the worker's own commands.",
    (
        Reason(
            "ruleset-in-force-is-newer",
            _FIRST,
            "A ruleset is never taken back; `data` has the one in force.",
            "Activate a newer one, or nothing.",
            Retry.NO,
        ),
        Reason(
            "in-the-future",
            (Code.BAD_REQUEST,),
            "`before_at_ms` of a prune lies in the future of the log.",
            "Give an earlier instant.",
            Retry.NEW,
        ),
        Reason(
            "other-epoch",
            (Code.CONFLICT,),
            "A rebase into an epoch that does not follow the log's.",
            "Nothing: another replica was first.",
            Retry.NO,
        ),
        Reason(
            "not-regressed",
            _FIRST,
            "A rebase was asked for, and no replica stands still for a reason that it would mend.",
            "Nothing to do; `tidegate status` says what is.",
            Retry.NO,
        ),
        Reason(
            "replica-not-named",
            _FIRST,
            "Replicas differ, and a rebase was asked for without saying whose file is right.",
            "`tidegate ledger verify --replica ID` for each, then `tidegate ledger rebase "
            "--replica ID`.",
            Retry.NEW,
        ),
        Reason(
            "clocks-apart",
            _FIRST,
            "The broker's clock and the worker's differ by more than a minute.",
            "Set the wrong one right, then ask again.",
            Retry.AGAIN,
        ),
        Reason(
            "no-such-replica",
            (Code.NOT_FOUND,),
            "No replica of that id answers and stands still.",
            "Take an id that `tidegate doctor` or the refusal before named; start its worker.",
            Retry.NEW,
        ),
        Reason(
            "ruleset-too-old",
            _FIRST,
            "What was asked for needs a newer ruleset than the one in force.",
            "`tidegate ledger ruleset 3` once the fold goes on; until then only waiting helps.",
            Retry.AGAIN,
        ),
        Reason(
            "ruleset-not-known",
            _FIRST,
            "A ruleset was to be activated that a worker which answers cannot fold under.",
            "Upgrade that worker first; `--force` activates it all the same, and the worker stops.",
            Retry.AGAIN,
        ),
        Reason(
            "replay-stopped",
            _LATER,
            "The log cannot be replayed to its end; the message says where it stopped.",
            "Do what the message says.",
            Retry.AGAIN,
        ),
        Reason(
            "snapshot-damaged",
            _LATER,
            "A snapshot does not digest to what it says; it is not used.",
            "Take a new one: `tidegate ledger snapshot`.",
            Retry.AGAIN,
        ),
        Reason(
            "object-damaged",
            _LATER,
            "An object of the snapshots' store is not what its description says.",
            "Take a new snapshot: `tidegate ledger snapshot`.",
            Retry.AGAIN,
        ),
    ),
)

STARTING: Final = Group(
    "Starting and settings",
    "The last line of a process that ends at once: exit code 3, or 2 for wrong settings.",
    (
        Reason(
            "bad-settings",
            (Code.BAD_REQUEST,),
            "A setting is wrong; the message names each by its variable.",
            "Mend it; `tidegate config show` explains each.",
            Retry.AGAIN,
        ),
        Reason(
            "no-broker",
            _FIRST,
            "No broker is configured, and none that a worker here started is to be found.",
            "Set `TIDEGATE_NATS_URL`, or start a worker with a broker of its own: `tidegate run`.",
            Retry.AGAIN,
        ),
        Reason(
            "bad-identity",
            _FIRST,
            "An identity file is damaged, open to others, or another principal's.",
            "Do what the message says, for example `chmod 600`.",
            Retry.AGAIN,
        ),
        Reason(
            "bad-credentials-file",
            (Code.INTERNAL,),
            "A seed or credentials file does not hold what it should.",
            "Name the right file in `TIDEGATE_NATS_NKEY_SEED_FILE` or `TIDEGATE_NATS_CREDS_FILE`.",
            Retry.AGAIN,
        ),
        Reason(
            "start-refused",
            _FIRST,
            "The worker will not start like this: streams missing or not as they must be, another "
            "worker in the data directory, a broker too old, a port in use.",
            "The message says what to do; `tidegate doctor` looks at all of it.",
            Retry.AGAIN,
        ),
        Reason(
            "ledger-locked",
            _FIRST,
            "Another process holds the ledger's file.",
            "One process per ledger; give every worker a data directory of its own.",
            Retry.AGAIN,
        ),
        Reason(
            "ledger-file-refused",
            _FIRST,
            "The file is not a ledger that this version may write to.",
            "The message names the differences.",
            Retry.AGAIN,
        ),
        Reason(
            "foreign-file",
            _FIRST,
            "`ledger.db` is no ledger.",
            "Move it away; the ledger is built again from snapshot and log.",
            Retry.AGAIN,
        ),
        Reason(
            "newer-file",
            _FIRST,
            "`ledger.db` was written by a newer version.",
            "Run that version, or move the file away: it is built again.",
            Retry.AGAIN,
        ),
        Reason(
            "damaged-file",
            _FIRST,
            "SQLite finds `ledger.db` damaged.",
            "Move it away; it is built again. Look at the disk.",
            Retry.AGAIN,
        ),
        Reason(
            "schema-differs",
            _FIRST,
            "A table, index or trigger of `ledger.db` was changed by hand.",
            "Move it away; it is built again.",
            Retry.AGAIN,
        ),
        Reason(
            "other-space",
            _FIRST,
            "`ledger.db` belongs to another space or root.",
            "Put it back where it belongs; name the right data directory.",
            Retry.AGAIN,
        ),
        Reason(
            "not-writable",
            _FIRST,
            "`ledger.db` cannot be made or opened for writing.",
            "Give the worker's user the data directory.",
            Retry.AGAIN,
        ),
        Reason(
            "setting-not-held",
            _FIRST,
            "SQLite did not take a setting that a guarantee depends on, for example on a file "
            "system without locks.",
            "Put the data directory on a local disk.",
            Retry.AGAIN,
        ),
        Reason(
            "connection-lost",
            _LATER,
            "A witness lost the broker for good.",
            "Start it again, as a supervisor does.",
            Retry.AGAIN,
        ),
    ),
)

BROKER: Final = Group(
    "The broker",
    "What the broker did not do; told apart by its numbers, never by its texts.",
    (
        Reason(
            "broker-unavailable",
            _LATER,
            "It cannot be reached or cannot serve this now; nothing was stored.",
            "Look at the broker; `tidegate doctor`.",
            Retry.SAME,
        ),
        Reason(
            "broker",
            _LATER,
            "It did not do what was asked; the message says what it answered.",
            "Look at the broker; `tidegate doctor`.",
            Retry.SAME,
        ),
        Reason(
            "jetstream-missing",
            _LATER,
            "The server has no JetStream, or not for this account.",
            "Turn it on. Clients are right to have none; the worker's account needs it.",
            Retry.SAME,
        ),
        Reason(
            "stream-missing",
            _LATER,
            "A stream does not exist. That says nothing about what it held.",
            "Restore the broker's store. A new stream would say that nothing ever was.",
            Retry.SAME,
        ),
        Reason(
            "consumer-missing",
            _LATER,
            "A durable does not exist.",
            "Nothing: the worker makes it again.",
            Retry.SAME,
        ),
        Reason(
            "cas-lost",
            (Code.CONFLICT,),
            "A compare-and-set was lost; nothing was stored.",
            "Look again, and decide again.",
            Retry.NEW,
        ),
        Reason(
            "message-absent",
            (Code.NOT_FOUND,),
            "Nothing is stored there: a result is kept for `TIDEGATE_RES_MAX_AGE_MS`.",
            "For an older outcome send the command again under the same id.",
            Retry.SAME,
        ),
        Reason(
            "name-taken",
            (Code.ALREADY_EXISTS,),
            "A stream or consumer of that name exists with other settings.",
            "`tidegate setup` names the differences.",
            Retry.AGAIN,
        ),
        Reason(
            "permission-denied",
            (Code.PERMISSION_DENIED,),
            "The broker's permissions refuse the subject to this user.",
            "Give the user the rights of its role: `tidegate setup --print-conf`; "
            "`tidegate doctor` names what lacks.",
            Retry.SAME,
        ),
        Reason(
            "credentials-refused",
            (Code.UNAUTHENTICATED,),
            "The broker refuses this user's credentials.",
            "Mend `TIDEGATE_NATS_USER`, its password or its file.",
            Retry.AGAIN,
        ),
        Reason(
            "tls-refused",
            _FIRST,
            "TLS was asked for (`tls://`) and the server offers none; no credentials were sent.",
            "Turn TLS on at the server, or say `nats://` if you mean it.",
            Retry.AGAIN,
        ),
        Reason(
            "schedule-refused",
            _FIRST,
            "The broker refused a message schedule.",
            "nats-server 2.14.3 or newer, and the stream's settings: `tidegate doctor`.",
            Retry.AGAIN,
        ),
        Reason(
            "rejected",
            (Code.INTERNAL,),
            "The broker refused for a reason that nobody handles by itself; the message has its "
            "number.",
            "Look at the broker's log.",
            Retry.AGAIN,
        ),
    ),
)
