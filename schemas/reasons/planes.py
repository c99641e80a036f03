"""Reasons of the planes: what a command may not have, by the rules of its plane."""

from typing import Final

from schemas.codes import Code
from schemas.reasons.kinds import Group, Reason, Retry

CHECKPOINTS: Final = Group(
    "Checkpoints",
    "`data` shows the checkpoint as it stands, where there is one to show.",
    (
        Reason(
            "deadline-not-future",
            (Code.BAD_REQUEST,),
            "`deadline_at_ms` is not in the future by the broker's clock.",
            "Give a later one, in milliseconds since 1970.",
            Retry.NEW,
        ),
        Reason(
            "deadline-too-far",
            (Code.BAD_REQUEST,),
            "The deadline is more than ten years away; the broker's scheduler overflows in 2262 "
            "and would fire at once.",
            "Give a nearer one; a heartbeat can move it.",
            Retry.NEW,
        ),
        Reason(
            "different-checkpoint",
            (Code.CONFLICT,),
            "This token was minted before with another holder, deadline, goal or prompt.",
            "A token names one pause for ever: mint another token, or look at this one in `data`.",
            Retry.NO,
        ),
        Reason(
            "token-closed",
            (Code.FAILED_PRECONDITION,),
            "The records of this token were deleted by hand; a token is never used again.",
            "Mint another token.",
            Retry.NO,
        ),
        Reason(
            "prompts-unsupported",
            (Code.BAD_REQUEST,),
            "The records bucket is a foreign one without atomic batches, where a prompt could be "
            "stored without its checkpoint.",
            "Mint without a prompt there.",
            Retry.NEW,
        ),
        Reason(
            "unknown-checkpoint",
            (Code.NOT_FOUND,),
            "There is no checkpoint of this endpoint and token.",
            "Look at both names; `tidegate cp list` shows what waits.",
            Retry.NEW,
        ),
        Reason(
            "verdict-forgotten",
            (Code.UNAVAILABLE,),
            "The command waited longer than results are kept and may have been answered before, "
            "so this delivery of it changes nothing.",
            "Ask again.",
            Retry.SAME,
        ),
        Reason(
            "incomplete",
            (Code.FAILED_PRECONDITION,),
            "The spec was written and the status was not: its minter died in between, on a bucket "
            "without atomic batches.",
            "Repeat the mint; it completes its own write.",
            Retry.NEW,
        ),
        Reason(
            "not-the-holder",
            (Code.PERMISSION_DENIED,),
            "The speaker is not the recorded holder: another name, or the same name in another "
            "life (uid).",
            "Resume as the holder. If the holder's life is gone, mint another token.",
            Retry.NO,
        ),
        Reason(
            "not-a-choice",
            (Code.BAD_REQUEST,),
            "The prompt has choices, and the answer is none of them.",
            "Answer with one of the choices, literally.",
            Retry.NEW,
        ),
        Reason(
            "prompt-differs",
            (Code.CONFLICT,),
            "`prompt_digest` is not the digest of the stored prompt: what was approved is not "
            "what was asked.",
            "Show the stored prompt (`cp.show`) and decide again.",
            Retry.NEW,
        ),
        Reason(
            "already-resumed",
            (Code.CONFLICT,),
            "The checkpoint was resumed before; `data` says by whom, when and with which answer.",
            "Nothing: the run goes on. If it was you, it is done.",
            Retry.NO,
        ),
        Reason(
            "expired",
            (Code.EXPIRED,),
            "The deadline passed first. An answer that came with a resume may be on file, and "
            "settled nothing.",
            "Nothing settles it any more: mint another token if the run should ask again.",
            Retry.NO,
        ),
        Reason(
            "stale-generation",
            (Code.CONFLICT,),
            "The heartbeat names a generation that is not in force: somebody else moved the "
            "deadline. Its own repeat is recognised and never ends here first.",
            "`data` has the generation and deadline in force; extend that one if still needed.",
            Retry.NEW,
        ),
        Reason(
            "deadline-moved",
            (Code.CONFLICT,),
            "While the resume was carried out, heartbeats moved the deadline twice.",
            "Resume again.",
            Retry.NEW,
        ),
        Reason(
            "not-due",
            (Code.FAILED_PRECONDITION,),
            "The deadline has not passed yet by the broker's clock.",
            "Expire it after its deadline, or do nothing: it expires by itself.",
            Retry.NEW,
        ),
        Reason(
            "status-regressed",
            (Code.FAILED_PRECONDITION,),
            "The status read *waiting* although the settle fact stands: the store lost a write. "
            "It was repaired from the fact.",
            "Look again: it is settled. Find out how the broker lost a write (`tidegate doctor`, "
            "`sync`).",
            Retry.NEW,
        ),
        Reason(
            "garbled-record",
            (Code.INTERNAL,),
            "A record does not fit its schema; nobody acts on it and nobody repairs it.",
            "Look at the keys of this token in `<root>_records_<space>` by hand: somebody else "
            "writes there.",
            Retry.NO,
        ),
        Reason(
            "fact-contradicts",
            (Code.INTERNAL,),
            "The settle fact says something else than the status; nobody acts.",
            "Look at both by hand; the fact is the one that was written once.",
            Retry.NO,
        ),
        Reason(
            "arm-conflict",
            (Code.CONFLICT,),
            "Others kept moving the timer while it was being armed.",
            "Nothing: it is tried again, and the sweep arms what is missing.",
            Retry.SAME,
        ),
        Reason(
            "arm-budget",
            (Code.UNAVAILABLE,),
            "The broker did not answer within the arm budget (`TIDEGATE_ARM_BUDGET_MS`).",
            "Nothing: it is tried again, and the sweep arms what is missing.",
            Retry.SAME,
        ),
        Reason(
            "index-building",
            (Code.UNAVAILABLE,),
            "This worker's list of waiting checkpoints is being built, or its disk is full.",
            "Ask again soon; what waits settles all the same.",
            Retry.SAME,
        ),
        Reason(
            "clock-unsure",
            (Code.UNAVAILABLE,),
            "In the log only: the broker's time came into doubt while a command was judged.",
            "Nothing: it is judged again once the time is known.",
            Retry.SAME,
        ),
        Reason(
            "scheduler-header",
            (Code.PERMISSION_DENIED,),
            "In the log only: a foreign owner's timer request carries a header of the scheduler. "
            "The request is dropped.",
            "Publish `….schedule` with no header at all.",
            Retry.NEW,
        ),
        Reason(
            "timer-id-differs",
            (Code.BAD_REQUEST,),
            "In the log only: `timerId` of a timer request is not the token in its subject. The "
            "request is dropped.",
            "Send the token.",
            Retry.NEW,
        ),
    ),
)

ADMISSION: Final = Group(
    "Admission",
    "`data` shows the turn, or the policy, as it stands.",
    (
        Reason(
            "fenced",
            (Code.FENCED,),
            "The lease, its generation or its owner is not the one that holds the seat: the seat "
            "was given back or taken away.",
            "Stop the turn at once and write nothing more to the provider. The turn goes on "
            "elsewhere, or ended.",
            Retry.NO,
        ),
        Reason(
            "wrong-state",
            (Code.FAILED_PRECONDITION,),
            "The turn is not in a state from which this verb moves it; `data.state` says where.",
            "Go on from where it is. After a timeout this may be your own command, carried out: "
            "the same id would have said so.",
            Retry.NO,
        ),
        Reason(
            "no-such-request",
            (Code.NOT_FOUND,),
            "There is no turn of this id.",
            "Look at the id; a settled turn is pruned after its time.",
            Retry.NO,
        ),
        Reason(
            "not-yours",
            (Code.PERMISSION_DENIED,),
            "The turn was enqueued by another principal.",
            "Send it as that principal, or as an operator where the verb is an operator's too.",
            Retry.NEW,
        ),
        Reason(
            "request-id-taken",
            (Code.CONFLICT,),
            "Another principal uses this request id.",
            "Enqueue under another request id; put your principal's name in front of yours.",
            Retry.NO,
        ),
        Reason(
            "different-request",
            (Code.CONFLICT,),
            "This request id was enqueued before with another field, which `message` names.",
            "Another turn needs another request id.",
            Retry.NO,
        ),
        Reason(
            "request-id-used",
            (Code.ALREADY_EXISTS,),
            "A turn of this id ended and was pruned; an id is never used again.",
            "Another turn needs another request id.",
            Retry.NO,
        ),
        Reason(
            "expires-too-early",
            (Code.BAD_REQUEST,),
            "The sealed prompt would go before the turn's waiting ends.",
            "Put it with a longer lifetime, or enqueue with a shorter `timeout_ms`.",
            Retry.NEW,
        ),
        Reason(
            "not-pull",
            (Code.FAILED_PRECONDITION,),
            "`admit` was asked for a turn that is pushed to its owner.",
            "Wait for its grant; or enqueue with `grant` `pull`.",
            Retry.NO,
        ),
        Reason(
            "different-intent",
            (Code.CONFLICT,),
            "This lease's intent was accepted with other processes or another channel.",
            "Write nothing for this one: two processes believe they run the turn.",
            Retry.NO,
        ),
        Reason(
            "epoch-mismatch",
            (Code.CONFLICT,),
            "The claim's epoch is not the one after that in force, which `data` shows.",
            "Look at the policy in force; claim `epoch` + 1 if yours should replace it.",
            Retry.NEW,
        ),
        Reason(
            "claim-pending",
            (Code.CONFLICT,),
            "Another claim waits for its drain to end.",
            "Wait until it is in force (`tidegate adm policy`), then claim the next epoch.",
            Retry.NEW,
        ),
        Reason(
            "drain-superseded",
            (Code.CONFLICT,),
            "This drain was begun; another drain, or a policy that resumes, has come since.",
            "Look at the policy in force, and drain again under a new id if you still want it.",
            Retry.NEW,
        ),
        Reason(
            "priority-too-high",
            (Code.PERMISSION_DENIED,),
            "The policy bounds what priority this principal may ask for; `message` says it.",
            "Enqueue with a lower priority, or have an operator claim a policy that allows it.",
            Retry.NEW,
        ),
        Reason(
            "policy-differs",
            (Code.CONFLICT,),
            "What is asserted is not the policy in force; `message` names what differs.",
            "Work with the policy in `data`, or have an operator claim the next epoch.",
            Retry.NEW,
        ),
        Reason(
            "not-together",
            (Code.BAD_REQUEST,),
            "`assert` came together with a claim.",
            "Send one of the two.",
            Retry.NEW,
        ),
        Reason(
            "no-payload",
            (Code.NOT_FOUND,),
            "The turn has no sealed prompt: it was enqueued without one, or none lies there.",
            "Take the prompt from where you keep it.",
            Retry.AGAIN,
        ),
        Reason(
            "payload-gone",
            (Code.NOT_FOUND,),
            "The sealed prompt has expired, or was destroyed when the turn was dispatched.",
            "Before its intent abandon the turn, and enqueue it under another request id.",
            Retry.NO,
        ),
        Reason(
            "no-space-key",
            (Code.UNAVAILABLE,),
            "The journal cannot be shown: the key that hides its request ids cannot be read now.",
            "Ask again.",
            Retry.AGAIN,
        ),
        Reason(
            "journal-damaged",
            (Code.INTERNAL,),
            "A row of the journal was changed by hand; its page is refused whole.",
            "`tidegate ledger verify`; stop the worker, move `ledger.db` away and start it: it is "
            "built again from snapshot and log.",
            Retry.AGAIN,
        ),
        Reason(
            "no-identity",
            (Code.FAILED_PRECONDITION,),
            "Evidence about a turn whose owner never named its processes.",
            "Nothing proves such an owner's end: an operator resolves it.",
            Retry.NO,
        ),
        Reason(
            "other-host",
            (Code.PERMISSION_DENIED,),
            "A witness speaks for its own host only, and asks about no other.",
            "Run `tidegate witness` on that host, with its host id.",
            Retry.NO,
        ),
        Reason(
            "other-process",
            (Code.CONFLICT,),
            "The evidence is about other processes than the turn's.",
            "Nothing: an observer looks again.",
            Retry.NO,
        ),
    ),
)

CAPS: Final = Group(
    "Caps",
    "A refused `authorize` sends nothing; any doubt is a refusal. `data` shows the cap, where one "
    "is concerned.",
    (
        Reason(
            "minting-paused",
            (Code.FAILED_PRECONDITION,),
            "New reservations are switched off, as they are until an operator switches them on.",
            "`tidegate cap minting on`.",
            Retry.NEW,
        ),
        Reason(
            "different-reservation",
            (Code.CONFLICT,),
            "This mint key was reserved with another cap or expiry, or a predecessor had it.",
            "Reserve under a fresh mint key.",
            Retry.NO,
        ),
        Reason(
            "no-free-second",
            (Code.RESOURCE_EXHAUSTED,),
            "The requested expiry second and the 299 before it are taken or past.",
            "Ask for a later expiry.",
            Retry.NEW,
        ),
        Reason(
            "unreserved",
            (Code.NOT_FOUND,),
            "Nothing is reserved under this mint key.",
            "Reserve first; confirm what was reserved.",
            Retry.NEW,
        ),
        Reason(
            "reservation-expired",
            (Code.EXPIRED,),
            "It was confirmed later than the window that begins with the reservation.",
            "Reserve and mint again under a fresh key.",
            Retry.NO,
        ),
        Reason(
            "expiry-mismatch",
            (Code.CONFLICT,),
            "The grant's expiry is not the second that was reserved.",
            "Mint with `wire_expires_at` of the reservation, confirm with its `expires_at_ms`.",
            Retry.NEW,
        ),
        Reason(
            "revoked",
            (Code.FAILED_PRECONDITION,),
            "This cap was revoked or stopped while it was active.",
            "Have the person mint another one.",
            Retry.NO,
        ),
        Reason(
            "superseded",
            (Code.FAILED_PRECONDITION,),
            "A later cap of this person was confirmed.",
            "Use that one.",
            Retry.NO,
        ),
        Reason(
            "legacy",
            (Code.FAILED_PRECONDITION,),
            "The record was imported from a predecessor; it only keeps its key and second taken.",
            "Have the person mint a cap here.",
            Retry.NO,
        ),
        Reason(
            "none-active",
            (Code.FAILED_PRECONDITION,),
            "Nothing is active for this person: never confirmed, or revoked.",
            "Have the person mint a cap.",
            Retry.NEW,
        ),
        Reason(
            "stopped",
            (Code.CANCELLED,),
            "A Stop or a bump came after this grant, or after this reservation.",
            "Send nothing. Have the person mint another one, if they want to.",
            Retry.NO,
        ),
        Reason(
            "grant-lapsed",
            (Code.EXPIRED,),
            "The grant's expiry has passed.",
            "Have the person mint another one.",
            Retry.NO,
        ),
        Reason(
            "grant-mismatch",
            (Code.CONFLICT,),
            "The grant named is not the active one: a later one superseded it.",
            "Send the expiry of the grant you hold now; to the second, it names the grant.",
            Retry.NEW,
        ),
        Reason(
            "over-cap",
            (Code.FAILED_PRECONDITION,),
            "The amount is above what one action may cost.",
            "Ask for less, or have the person mint a higher cap.",
            Retry.NEW,
        ),
        Reason(
            "ruleset-too-new",
            (Code.UNSUPPORTED_VERSION,),
            "The grant was made under a newer ruleset than the one in force.",
            "Upgrade the workers and activate it: `tidegate ledger ruleset`.",
            Retry.NEW,
        ),
        Reason(
            "already-imported",
            (Code.ALREADY_EXISTS,),
            "An import was completed before, and there is no second one.",
            "Nothing.",
            Retry.NO,
        ),
        Reason(
            "chunk-out-of-order",
            (Code.FAILED_PRECONDITION,),
            "Another chunk of this import is next; `message` says which.",
            "Run `tidegate cap import` again: it goes on where it was.",
            Retry.NEW,
        ),
        Reason(
            "bad-leftovers",
            (Code.BAD_REQUEST,),
            "The folder cannot be imported; the message says what is wrong with it.",
            "Mend it, and look first with `--dry-run`.",
            Retry.AGAIN,
        ),
    ),
)
