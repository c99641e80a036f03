"""Reasons of a command or query that is not what the contract says, whatever it is about."""

from typing import Final

from schemas.codes import Code
from schemas.reasons.kinds import Group, Reason, Retry

_BAD: Final = (Code.BAD_REQUEST,)


def _bad(word: str, cause: str, remedy: str, retry: Retry = Retry.NEW) -> Reason:
    return Reason(word, _BAD, cause, remedy, retry)


BODY: Final = Group(
    "The body",
    "`error.field` names the field by its path (`holder.id`, `records[3].cap`), or is `body`. "
    "Nothing was done. The bodies are in the [reference](reference/README.md).",
    (
        _bad("empty", "There is no body.", 'Send a JSON object, at least `{"v": 1}`.'),
        Reason(
            "too-large",
            (Code.BAD_REQUEST, Code.RESOURCE_EXHAUSTED),
            "The body is larger than 64 KiB, or the message is larger than the broker takes.",
            "Send less: text that is only shown belongs behind a link.",
            Retry.NEW,
        ),
        _bad("too-deep", "The body is nested deeper than 64 levels.", "Flatten it."),
        _bad("not-utf8", "The body is not UTF-8.", "Encode it as UTF-8."),
        _bad("not-json", "The body is not JSON.", "Look at what your client serialises."),
        _bad(
            "not-an-object",
            "The body is JSON, but not an object.",
            'Wrap it: `{"v": 1, …}`.',
        ),
        _bad("duplicate-key", "A key stands twice in one object.", "Send each key once."),
        _bad(
            "not-finite",
            "A number is NaN, infinite or beyond a double.",
            "Send a whole number; every number of the contract is one.",
        ),
        _bad(
            "number-too-large",
            "A whole number lies outside -(2^53-1)..2^53-1.",
            "Send a number every JSON reader agrees on; instants are milliseconds.",
        ),
        _bad(
            "lone-surrogate",
            "A string holds half of a surrogate pair.",
            "Send whole characters; something cut a string in the middle of one.",
        ),
        Reason(
            "unsupported-version",
            (Code.UNSUPPORTED_VERSION,),
            "`v` is another version than this worker speaks.",
            "Send `1`, or upgrade the worker.",
            Retry.NEW,
        ),
        _bad("missing-field", "A field that must be there is not.", "Add it."),
        _bad(
            "unknown-field",
            "A field is not known here; bodies are closed.",
            "Take it out, or mend its name.",
        ),
        _bad(
            "null-field",
            "A field is `null`.",
            "Leave it out: absent is how nothing is said.",
        ),
        _bad(
            "wrong-type",
            "A field has another type; nothing is coerced: `1.0` and `true` are no whole number.",
            "Send the type of the reference.",
        ),
        _bad(
            "out-of-range",
            "A number, a length or a count is outside its bounds, which `message` names.",
            "Stay within them.",
        ),
        _bad(
            "bad-token",
            "A field or a part of the subject does not match its grammar.",
            "See the grammar in the reference; a name that does not fit must be mapped by you.",
        ),
        _bad("not-one-of", "A field is none of the words it may be.", "`message` lists them."),
        _bad("duplicate-entry", "A list holds an entry twice.", "Send it once."),
        _bad(
            "needs-goal",
            "`obligations` came without a `goal`.",
            "Send the goal too, or no obligations.",
        ),
        _bad(
            "needs-failure",
            "`failure` came with an outcome other than `failed`.",
            "Send `outcome` `failed`, or no failure.",
        ),
        _bad(
            "garbled",
            "The fields of a record do not fit its state, for example a holder on an expired one.",
            "Met by those who read records themselves: look at that record by hand.",
            Retry.NO,
        ),
        _bad("invalid", "A field is wrong in a way that has no word of its own.", "See `message`."),
    ),
)

SUBJECT: Final = Group(
    "The subject and the headers",
    "`error.field` is `subject` or the header's name. Nothing was done. A subject whose speaker "
    "does not parse is answered on `<root>.<space>.res._.invalid.<id>`.",
    (
        _bad(
            "bad-subject", "The subject is not a command's.", "See the subjects in the reference."
        ),
        _bad(
            "bad-principal",
            "The principal in the subject does not match `[A-Za-z0-9_-]{1,64}`.",
            "Speak as a name that does.",
        ),
        _bad(
            "bad-uid",
            "The uid in the subject does not match `[a-z0-9]{26,32}`.",
            "Make one per life of your process: `tidegate identity init`, or 26 characters of "
            "lower-case base32 over 128 random bits.",
        ),
        _bad(
            "bad-speaker",
            "The subject of a query does not name `<principal>.<uid>`.",
            "Query as a speaker: `<root>.<space>.qry.<principal>.<uid>.<plane>.<name>`.",
            Retry.AGAIN,
        ),
        _bad(
            "subject-differs",
            "A field of a query's body names another than its subject, and only that was judged.",
            "Say the same in both.",
        ),
        _bad(
            "unknown-plane", "The subject names no plane.", "Planes are `cp`, `adm`, `cap`, `sys`."
        ),
        _bad("unknown-verb", "The plane has no such verb.", "See the verbs in the reference."),
        _bad(
            "bad-key",
            "What follows the verb is not the key this verb takes.",
            "See the subject of the verb in the reference.",
        ),
        _bad(
            "bad-endpoint",
            "The endpoint does not match its grammar.",
            "Labels of `[a-z0-9-]` joined by dots; in a subject the dots are written `_`.",
        ),
        _bad(
            "bad-user",
            "The user in the subject does not match `[A-Za-z0-9-]{1,100}`.",
            "Map your user ids to that, one to one.",
        ),
        _bad(
            "bad-mint-key",
            "The mint key in the subject does not match `[A-Za-z0-9_-]{16,100}`.",
            "Use a random key, one per cap that is to be minted.",
        ),
        _bad("too-long", "The subject would be longer than 1,024 bytes.", "Use shorter names."),
        _bad(
            "reserved-space",
            "A space must not begin with `REQ_`: its streams would take other spaces' names.",
            "Call it something else.",
            Retry.NO,
        ),
        Reason(
            "wrong-role",
            (Code.PERMISSION_DENIED,),
            "The principal's name does not allow this verb: `sys` is the worker's, an operator's "
            "verbs are those of principals `_op…`, a reserved name has its own verbs only.",
            "Send it as the right principal.",
            Retry.NEW,
        ),
        _bad(
            "repeated-header",
            "`Tidegate-Command` is given more than once.",
            "Give it once.",
        ),
        _bad(
            "bad-command-id",
            "`Tidegate-Command` does not match `[A-Za-z0-9_-]{16,64}`.",
            "Use a random id, for example a UUID.",
        ),
        _bad(
            "reserved-command-id",
            "The command id begins like those the ledger derives itself.",
            "Choose another beginning.",
        ),
        Reason(
            "command-id-reused",
            (Code.CONFLICT,),
            "This command id was used for another subject or body within 30 days; of a checkpoint: "
            "it has resumed it, with another answer or prompt.",
            "One intent, one id: send this one under a fresh id. If you meant to repeat the "
            "earlier command, send exactly the same body.",
            Retry.NEW,
        ),
    ),
)

ANSWERING: Final = Group(
    "Nobody could do it",
    "`status` is `failed`, or your client raised it because no result came. None of these says "
    "that the command was not carried out, unless it says so.",
    (
        Reason(
            "outcome-unknown",
            (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE),
            "No result or acknowledgement came in time. The command may have been carried out, "
            "or may be later.",
            "Send it again under the same id until a result comes. Take an `authorize` for "
            "refused and ask anew: a permit is never answered from memory.",
            Retry.SAME,
        ),
        Reason(
            "nobody-there",
            (Code.UNAVAILABLE,),
            "The broker has nobody for this subject: the space is not set up there, or no worker "
            "runs. Nothing was stored.",
            "`tidegate doctor`; start the worker, or mend the space's name.",
            Retry.SAME,
        ),
        Reason(
            "not-folding",
            (Code.UNAVAILABLE,),
            "The worker does not fold commands at present, and says so at once. The command is "
            "in the log and will be judged when folding goes on, at its place in the log.",
            "`tidegate status` says why it stopped; the runbook has each reason. Ask again under "
            "the same id; take an `authorize` for refused.",
            Retry.SAME,
        ),
        Reason(
            "query-timeout",
            (Code.DEADLINE_EXCEEDED,),
            "No worker answered the query in time.",
            "Ask again; a query changes nothing.",
            Retry.AGAIN,
        ),
        Reason(
            "too-many-queries",
            (Code.UNAVAILABLE,),
            "This worker answers as many queries at once as it takes, of all or of this principal.",
            "Ask again a moment later, and ask less often: subscribe to facts instead of polling.",
            Retry.AGAIN,
        ),
        Reason(
            "answer-too-large",
            (Code.RESOURCE_EXHAUSTED,),
            "The answer does not fit into one message of this broker.",
            "Ask for a smaller page with `limit`.",
            Retry.AGAIN,
        ),
        Reason(
            "not-reached",
            (Code.UNAVAILABLE,),
            "The query's `after` names a result that the fold has not reached within its patience.",
            "Ask again; if it stays, the worker is behind: `tidegate top`.",
            Retry.AGAIN,
        ),
        _bad(
            "bad-result-id",
            "`after` is not a result id of the ledger, `<epoch>-<seq>`.",
            "Give the `id` of a result.",
            Retry.AGAIN,
        ),
        _bad(
            "bad-cursor",
            "`cursor` (of a prune `after`) is not one that was answered.",
            "Give `next_cursor` of the page before, or none.",
            Retry.AGAIN,
        ),
        Reason(
            "internal",
            (Code.INTERNAL,),
            "The worker could not do it and its log says why; of caps: a person's rows are "
            "damaged, and nothing is authorised for that person.",
            "Look at the log. Then checkpoints: again under the same id, since a write that was "
            "made is recognised. Caps: under a new id, since this result is remembered.",
            Retry.NEW,
        ),
    ),
)
