"""Parts of the reference that hold for every plane."""

from typing import Final

from schemas import headers
from worker.pages.markdown import code, table

INTRO: Final = """\
# Reference

The wire contract, message by message: subjects, bodies with types, limits and defaults, results,
facts, headers. It is written from the models that the worker itself parses with, and every example
is checked against them. For a machine: `tidegate schema` prints JSON Schema of the same messages,
`tidegate schema --names` their names.

"""

_PREFIX: Final = "<root>.<space>"
_SUBJECTS: Final = (
    ("a command", "cmd.<principal>.<uid>.<plane>.<verb>[.<key>]", "you publish, as a request"),
    ("its result", "res.<principal>.<uid>.<plane>.<verb>.<id>", "you subscribe to your own"),
    ("the result of one without a speaker", "res._.invalid.<id>", "nobody's"),
    ("a query", "qry.<principal>.<uid>.<plane>.<name>", "you request"),
    ("a seat", "grant.<principal>.<uid>.<request id>.<generation>", "you subscribe to your own"),
    (
        "a lost lease, to its owner",
        "res.<principal>.<uid>.adm.lease_lost.<epoch>-<seq>-<n>",
        "you subscribe to your own",
    ),
    ("a fact about a checkpoint", "fact.cp.<kind>.<endpoint>.<token>.<generation>", "you observe"),
    (
        "a fact of the ledger",
        "fact.<plane>.<kind>[.<key>].<epoch>-<seq>-<n>",
        "you observe",
    ),
    ("the settle fact of a checkpoint", "epf.<endpoint>.cp.<token>", "stored for ever"),
    (
        "a foreign owner's wish for a timer",
        "ept.<endpoint>.<instance>.<epoch>.<token>.schedule",
        "its owner publishes",
    ),
    (
        "a timer: armed, fired, cancelled",
        "ept.<endpoint>.<instance>.<epoch>.<token>.armed, .fire, .cancel",
        "the worker's",
    ),
    ("a sign of life", "hb.<principal>.<uid>", "a connector publishes every second, no body"),
)

SUBJECTS: Final = (
    "## Subjects\n\n"
    f"All begin with `{_PREFIX}`; `<root>` is `tidegate` unless set otherwise, `<space>` the "
    "tenant. The subject says who speaks; what a body says about that is not read.\n\n"
    + table(
        ("what", f"subject behind `{_PREFIX}.`", "who"),
        ((what, code(subject), who) for what, subject, who in _SUBJECTS),
    )
    + "\nA result is stored for `TIDEGATE_RES_MAX_AGE_MS` (an hour) and read back by direct get: "
    "`$JS.API.DIRECT.GET.RES_<space>.<its subject>`. Facts and grants are stored beside it.\n"
)

ENVELOPE: Final = """\
## A body

One closed JSON object with `"v": 1` and the fields of its message. Refused, naming the field: an
unknown field, a duplicate key, a float where a whole number belongs, `true` for a number, NaN, a
lone surrogate. `null` counts as absent in commands and queries, and is refused in records. Names
that end in `_at_ms` are instants, milliseconds since 1970; in `_ms`, durations. Money is whole
units. `v` stands in every message but those that are shown without it; the tables leave it out.
"""

_HEADERS: Final = (
    (
        headers.COMMAND,
        "yours, on a command",
        "The command id: one intent, one id. The same again is carried out once, and each time "
        "answered. Without it one is made from the sequence, and a repeat is a new command.",
    ),
    (
        headers.TRACEPARENT,
        "yours, on a command",
        "W3C trace context; carried on to its result and to what follows from it.",
    ),
    (
        headers.COMMAND,
        "the worker's, on a result",
        "The command's id, also where it was made from the sequence.",
    ),
    (
        headers.CAUSE,
        "the worker's, on records and facts of checkpoints",
        "`<principal>/<command id>` of the command a write was made for; how a lost "
        "acknowledgement is recognised.",
    ),
    (
        f"{headers.STORED_IN}`, `{headers.STORED_ON}",
        "the broker's, on what a stream has stored",
        "Where it is stored. Believe a result, grant or fact that you hear only if the second is "
        "the subject you heard it on; without them, only a result that says `unavailable`.",
    ),
    (
        headers.SCHEDULER,
        "the broker's, on a fired timer",
        "The subject that was armed.",
    ),
    (
        headers.MSG_ID,
        "nobody's",
        "Never used on command streams: the broker's dedupe would let one principal's id swallow "
        "another's command.",
    ),
)

HEADERS: Final = (
    "## Headers\n\n"
    + table(
        ("header", "whose", "meaning"),
        ((code(name), whose, meaning) for name, whose, meaning in _HEADERS),
    )
    + (
        "\nA timer request of a foreign owner carries no header; one that begins "
        + ", ".join(code(name) for name in headers.REFUSED_ON_REQUESTS)
        + " (in any case) is dropped.\n"
    )
)
