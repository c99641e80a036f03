"""What a command's result or a query's answer can be where it is ok: stable words, declared once.

Refusals are in ``schemas.reasons``. What the planes say and what stands here are kept equal by
``tests/docs/test_reference.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Outcome:
    """One ok outcome.

    Attributes:
        word: The stable word.
        meaning: For people.
        data: Name of the message that ``data`` is, or what it holds; empty if it is ``{}``.
    """

    word: str
    meaning: str
    data: str = ""


_CHECKPOINT: Final = "view.cp.checkpoint"
_TURN: Final = "view.adm.turn"
_SHORT: Final = "view.adm.outcome"
_POLICY: Final = "view.adm.policy"
_CAP: Final = "view.cap.cap"
_SUSPECT: Final = "`suspect_since_ms`"
_SENT: Final = "view.sys.sent"
_PRUNED: Final = "how many `turns`, `lines`, `connectors`, `permits` and `command_ids` went"
_NOBODY: Final = Outcome("nobody-listens", "No plane of this worker looks at processes.")

RESULTS: Final[Mapping[tuple[str, str], tuple[Outcome, ...]]] = MappingProxyType(
    {
        ("cp", "mint"): (
            Outcome("minted", "The run waits; its timer is armed.", _CHECKPOINT),
            Outcome(
                "already_minted",
                "The same was minted before; `data` shows it as it stands now.",
                _CHECKPOINT,
            ),
        ),
        ("cp", "heartbeat"): (
            Outcome(
                "extended", "The deadline was moved; the generation is one higher.", _CHECKPOINT
            ),
        ),
        ("cp", "resume"): (
            Outcome("resumed", "It settled: the run goes on. Its fact stands.", _CHECKPOINT),
        ),
        ("cp", "expire"): (
            Outcome(
                "expired", "It settled: the deadline had passed. Its fact stands.", _CHECKPOINT
            ),
            Outcome("already_settled", "It had settled before; `data` says how.", _CHECKPOINT),
        ),
        ("cp", "repair"): (
            Outcome("repaired", "`repairs` says what was done.", f"{_CHECKPOINT} and `repairs`"),
            Outcome("nothing_to_repair", "All of it stands.", f"{_CHECKPOINT} and `repairs`"),
        ),
        ("adm", "enqueue"): (
            Outcome("queued", "The turn waits.", _SHORT),
            Outcome("idempotent", "The same was enqueued before; nothing changed.", _TURN),
            Outcome("adopted", "A new life of the owner took over the queued turn.", _TURN),
            Outcome("payload_attached", "The prompt it waited for is there again.", _TURN),
        ),
        ("adm", "cancel"): (Outcome("cancelled", "The turn will get no seat.", _SHORT),),
        ("adm", "admit"): (
            Outcome("admitted", "A seat, with its fence.", "view.adm.grant"),
            Outcome("idempotent", "The seat it has already.", "view.adm.grant"),
            Outcome("none", "No seat now; `blocks` says why.", "`blocks`"),
        ),
        ("adm", "start"): (Outcome("starting", "The turn is being prepared.", _SHORT),),
        ("adm", "intent"): (
            Outcome("dispatch_intent", "Now the provider may be written to.", _SHORT),
            Outcome("idempotent", "The same intent was accepted before.", _SHORT),
        ),
        ("adm", "active"): (Outcome("active", "The provider has it.", _SHORT),),
        ("adm", "ambiguous"): (Outcome("dispatch_ambiguous", "It is a debt.", _SHORT),),
        ("adm", "complete"): (
            Outcome("completed", "Over; the seat is free.", _SHORT),
            Outcome("failed", "Over; the seat is free.", _SHORT),
            Outcome("cancelled", "Over; the seat is free.", _SHORT),
        ),
        ("adm", "abandon"): (
            Outcome("failed", "Over, nothing was written; the seat is free.", _SHORT),
            Outcome("cancelled", "Over, nothing was written; the seat is free.", _SHORT),
        ),
        ("adm", "recover"): (
            Outcome("recovery_required", "It is a debt that keeps its seat.", _SHORT),
        ),
        ("adm", "resolve"): (
            Outcome("requeued", "Queued again under the next generation.", _SHORT),
            Outcome("queue_timeout", "Its waiting was over already.", _SHORT),
            Outcome("completed", "Over; the seat is free.", _SHORT),
            Outcome("recovery_required", "The seat is free; the turn stays as it is.", _SHORT),
        ),
        ("adm", "cooldown"): (
            Outcome("cooling", "The model rests until then.", "`provider`, `model`, `until_ms`"),
            Outcome("not-cooling", "That instant has passed.", "`provider`, `model`, `until_ms`"),
        ),
        ("adm", "policy"): (
            Outcome("claimed", "In force.", _POLICY),
            Outcome("draining", "In force as soon as few enough seats are held.", _POLICY),
            Outcome("idempotent", "In force already.", _POLICY),
            Outcome("match", "What was asserted is in force.", _POLICY),
        ),
        ("adm", "drain"): (
            Outcome("drained", "No more seats are held than that.", _POLICY),
            Outcome("draining", "More are held; nothing is admitted until they end.", _POLICY),
            Outcome("claimed", "A claim that waited for its drain is in force.", _POLICY),
        ),
        ("cap", "minting"): (
            Outcome("minting_enabled", "Caps may be reserved.", "view.cap.settings"),
            Outcome("minting_paused", "None may be reserved.", "view.cap.settings"),
        ),
        ("cap", "reserve"): (
            Outcome("reserved", "The second is taken, for ever.", _CAP),
            Outcome("already_reserved", "The same was reserved before.", _CAP),
        ),
        ("cap", "confirm"): (
            Outcome("confirmed", "It authorises; the one before is superseded.", _CAP),
            Outcome("already_confirmed", "It was confirmed before, and authorises.", _CAP),
        ),
        ("cap", "authorize"): (Outcome("allowed", "One send may begin now.", "view.cap.permit"),),
        ("cap", "revoke"): (
            Outcome("revoked", "It authorises nothing more.", _CAP),
            Outcome("nothing-to-revoke", "It is not the active one."),
        ),
        ("cap", "stop"): (Outcome("stopped", "Nothing is authorised any more.", "view.cap.stop"),),
        ("cap", "bump"): (
            Outcome("bumped", "What is active authorises nothing any more.", "view.cap.bump"),
        ),
        ("cap", "import"): (
            Outcome("taken_in", "The chunk is in; more are to come.", "view.cap.import"),
            Outcome("already_taken_in", "This chunk was in before.", "view.cap.import"),
            Outcome("imported", "That was the last chunk.", "view.cap.import"),
        ),
        ("sys", "ruleset"): (
            Outcome("activated", "In force from here on.", "`version`"),
            Outcome("already_active", "In force already.", "`version`"),
        ),
        ("sys", "prune"): (
            Outcome("pruned", "What was older is gone.", _PRUNED),
            Outcome(
                "pruned_in_part",
                "As much as one command looks at; the next one goes on `after` it.",
                f"{_PRUNED}; `next`, where to go on",
            ),
        ),
        ("sys", "clock"): (
            Outcome("set_back", "Log time is the broker's again.", "`back_ms`, by how much"),
            Outcome("in_step", "Log time was not ahead.", "`back_ms` 0"),
        ),
        ("sys", "rebase"): (Outcome("rebased", "The log goes on in this epoch.", "`epoch`"),),
        ("sys", "liveness"): (
            Outcome("suspected", "The owner's queued turns are skipped.", _SUSPECT),
            Outcome("retained", "It was suspect before.", _SUSPECT),
            Outcome("fresh", "It was heard lately; nothing changed."),
            Outcome("cleared", "It is trusted again."),
            Outcome("alive", "It was trusted all along."),
            Outcome("unknown", "It has no turn here."),
            _NOBODY,
        ),
        ("sys", "evidence"): (
            Outcome("released", "The seat is free.", _SHORT),
            Outcome("marked", "The turn is a debt, or its owner known to be dead.", _SHORT),
            Outcome("suspected", "Somebody could not be verified.", _SHORT),
            Outcome("retained", "Nothing changed.", _SHORT),
            _NOBODY,
        ),
    }
)
"""``(plane, verb)`` to its ok outcomes; a tick gets no result."""

ANSWERS: Final[Mapping[tuple[str, str], tuple[Outcome, ...]]] = MappingProxyType(
    {
        ("cp", "show"): (
            Outcome(
                "shown",
                "The records as stored; prompt and answer for minter, holder and operators.",
                "view.cp.show",
            ),
        ),
        ("cp", "list"): (
            Outcome(
                "listed",
                "Waiting checkpoints by deadline.",
                "`items` of `endpoint`, `token`, `generation`, `deadline_at_ms`, `holder`; "
                "`next_cursor`",
            ),
        ),
        ("cp", "wait"): (
            Outcome("settled", "It settled and its fact stands.", _CHECKPOINT),
            Outcome("still_waiting", "The time is up; ask again.", _CHECKPOINT),
        ),
        ("adm", "request"): (Outcome("found", "The turn and its lease.", _TURN),),
        ("adm", "queue"): (
            Outcome("found", "Where the turn asked for stands.", "view.adm.place"),
            Outcome("listed", "The head of the queue.", "view.adm.queue"),
        ),
        ("adm", "leases"): (Outcome("listed", "Every seat that is held.", "view.adm.leases"),),
        ("adm", "recoverable"): (
            Outcome("listed", "What could be settled.", "view.adm.recoverable"),
        ),
        ("adm", "policy"): (Outcome("found", "The policy and what is held.", _POLICY),),
        ("adm", "events"): (Outcome("listed", "A page of the journal.", "view.adm.events"),),
        ("adm", "payload"): (
            Outcome("found", "The sealed prompt of the lease.", "view.adm.payload"),
        ),
        ("adm", "sealed"): (
            Outcome(
                "found",
                "What lies there, without its content.",
                "`key_version`, `content_fingerprint`, `expires_at_ms`, `revision`",
            ),
        ),
        ("cap", "show"): (Outcome("shown", "What stands for the person.", "view.cap.show"),),
        ("cap", "list"): (Outcome("listed", "A page of caps.", "view.cap.list"),),
        ("sys", "status"): (
            Outcome(
                "status",
                "How the worker that answered is; what each plane says of itself is its own.",
                "view.sys.status",
            ),
        ),
        ("sys", "digest"): (
            Outcome(
                "digest",
                "Equal in all replicas at one sequence.",
                "view.sys.digest",
            ),
        ),
        ("sys", "snapshots"): (Outcome("snapshots", "The newest first.", "view.sys.snapshots"),),
        ("sys", "snapshot"): (
            Outcome(
                "stored",
                "Stored, read back and verified.",
                "view.sys.snapshot",
            ),
        ),
        ("sys", "trim"): (
            Outcome(
                "trimmed",
                "The log begins at `first_seq`.",
                "view.sys.trim",
            ),
        ),
        ("sys", "prune"): (
            Outcome("folded", "The command is folded; its result has its own subject.", _SENT),
            Outcome("published", "The command is in the log.", _SENT),
        ),
        ("sys", "ruleset"): (
            Outcome("folded", "The command is folded; its result has its own subject.", _SENT),
            Outcome("published", "The command is in the log.", _SENT),
        ),
        ("sys", "clock"): (
            Outcome("folded", "The command is folded; its result has its own subject.", _SENT),
            Outcome("published", "The command is in the log.", _SENT),
        ),
        ("sys", "rebase"): (Outcome("asked", "That replica does it.", "view.sys.rebase"),),
    }
)
"""``(plane, name)`` of a query to its ok outcomes."""
