"""docs/reasons.md: what every error says, what to do about it, and whether to ask again."""

from collections.abc import Mapping
from typing import Any, Final

from schemas.codes import RETRYABLE, Code
from schemas.reasons import GROUPS, Group, Retry, words
from worker.pages.markdown import anchor, code, table

_INTRO: Final = """\
# Reasons

Whatever does not end `ok` says why in two words: `code`, one of a closed set that is safe to branch
on, and `reason`, which says exactly what. `message` is for people and may change. In a result they
stand in `error`, in the answer to a query too; the command line prints them with `--json`; a Python
error has them as attributes.

```json
{"v": 1, "command_id": "…", "id": "1-42", "at_ms": 1790000000000, "status": "refused",
 "outcome": "over-cap", "data": {}, "chain": "…",
 "error": {"code": "failed-precondition", "reason": "over-cap",
           "message": "the amount is above the cap", "retryable": false}}
```

`status` is `refused` where the command may not have this, and `failed` where we could not do it.
`retryable` is true where asking again under the same command id can help all by itself.

"""

_RETRY: Final = {
    Retry.SAME: "Send the same command again under the same command id, until it is answered. "
    "It is carried out once at most, and the answer says how it ended. (A query, or anything "
    "local: simply again.)",
    Retry.NEW: "This command has been decided. Put right what the row says, then send a new "
    "command under a new id. Under the old id the ledger repeats what it said before.",
    Retry.AGAIN: "There is no command id in this: a query, a start, something local. Put right "
    "what the row says and do it again.",
    Retry.NO: "This will never be given. Do what the row says instead.",
}

_TIMEOUTS: Final = """\
**No answer is not a refusal.** A timeout, a lost connection and `outcome-unknown` leave open
whether the command was stored. The one rule for them all: the same command, the same id, again,
until there is a result. Only `authorize` is different: whatever is not an `allowed` in time is a
refusal.

"""


def page() -> str:
    """The page."""
    return "".join(
        (
            _INTRO,
            "## Asking again\n\n",
            table(
                ("ask again", "what that means"),
                ((code(retry.value), meaning) for retry, meaning in _RETRY.items()),
            ),
            "\n",
            _TIMEOUTS,
            "## Codes\n\n",
            table(
                ("code", "what kind of trouble", "`retryable`"),
                ((code(each.value), words.CODES[each], _retryable(each)) for each in Code),
            ),
            "\n## Where to look\n\n",
            *(f"- [{group.title}](#{anchor(group.title)})\n" for group in GROUPS),
            f"- [{_FACTS}](#{anchor(_FACTS)})\n",
            *(_group(group) for group in GROUPS),
            _facts(),
        )
    )


def _retryable(each: Code) -> str:
    if each is Code.DEADLINE_EXCEEDED:
        return "of a command"
    return "yes" if each in RETRYABLE else "no"


def _group(group: Group) -> str:
    rows = (
        (
            code(reason.word),
            ", ".join(code(each.value) for each in reason.codes),
            reason.cause,
            reason.remedy,
            code(reason.retry.value),
        )
        for reason in group.reasons
    )
    head = ("reason", "code", "what happened", "what to do", "ask again")
    return f"\n## {group.title}\n\n{group.about}\n\n{table(head, rows)}"


_FACTS: Final = "Reasons that are no errors"


def _facts() -> str:
    lost = table(("`reason`", "why the seat is gone"), _rows(words.LOST))
    ended = table(("`reason`", "why the turn ended"), _rows(words.ENDED))
    return (
        f"\n## {_FACTS}\n\n"
        "A lost lease (`lease_lost`, as a message to its owner and as a fact):\n\n"
        f"{lost}\nA turn that ended, where its state does not say it (`adm.request`):\n\n{ended}"
    )


def _rows(meanings: Mapping[Any, str]) -> list[tuple[str, str]]:
    return [(code(word), meaning) for word, meaning in meanings.items()]
