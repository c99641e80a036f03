"""What a command is answered when it comes again under the same command id, verb by verb.

A recorded ``ok`` is history. Where an ``ok`` permits something outside, history is no permission:
the repeat is judged anew, at its own sequence. A recorded refusal permits nothing and is repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Repeat:
    """How the repeat of a verb's ``ok`` is answered.

    Attributes:
        anew: Whether it is judged at its own sequence; else it is answered from memory.
        why: Why that is safe.
    """

    anew: bool
    why: str


def _recorded(why: str) -> Repeat:
    return Repeat(anew=False, why=why)


def _anew(why: str) -> Repeat:
    return Repeat(anew=True, why=why)


REPEATS: Final[Mapping[tuple[str, str], Repeat]] = MappingProxyType(
    {
        ("adm", "enqueue"): _recorded(
            "permits nothing: a seat comes by a grant. Anew, a life that is over could take its "
            "turn back from the one that adopted it"
        ),
        ("adm", "cancel"): _recorded("what is cancelled stays cancelled"),
        ("adm", "admit"): _anew(
            "hands out a seat: the same one while it stands untouched, else `fenced` or "
            "`wrong-state`, never a second one; `none` permits nothing and stays `none`"
        ),
        ("adm", "start"): _anew(
            "permits the preparation: only while its seat stands in `starting`"
        ),
        ("adm", "intent"): _anew(
            "permits the write to the provider: only while its seat stands in `dispatch_intent`, "
            "for the same processes"
        ),
        ("adm", "active"): _anew("permits going on: only while its seat stands in `active`"),
        ("adm", "ambiguous"): _recorded("permits nothing: the owner's work on the turn ends here"),
        ("adm", "complete"): _recorded("what has ended stays ended"),
        ("adm", "abandon"): _recorded("what has ended stays ended, and is never queued again"),
        ("adm", "recover"): _recorded("permits nothing: the owner's work on the turn ends here"),
        ("adm", "resolve"): _recorded(
            "anew it would free the debt of a later generation, which nobody has looked at"
        ),
        ("adm", "cooldown"): _recorded("permits nothing. Anew it would undo what was set since"),
        ("adm", "policy"): _anew(
            "says what is in force now; a claim names its epoch, so it is never carried out twice"
        ),
        ("adm", "drain"): _anew(
            "says how far it has come by now, while it stands, else `drain-superseded`; it is "
            "never begun twice"
        ),
        ("cap", "reserve"): _recorded(
            "what is minted after it authorises nothing: each send is judged by `authorize`"
        ),
        ("cap", "confirm"): _recorded(
            "the grant authorises nothing by it: each send is judged by `authorize`"
        ),
        ("cap", "authorize"): _anew("permits one send: judged each time, and never recorded"),
        ("cap", "revoke"): _recorded("what is revoked stays revoked; a second is never used again"),
        ("cap", "stop"): _recorded(
            "permits nothing. Anew, a copy that comes late would end what was approved since; "
            "who wants a Stop now sends a new one"
        ),
        ("cap", "bump"): _recorded("permits nothing. Anew it would end what was approved since"),
        ("cap", "minting"): _recorded("permits nothing. Anew it would undo what was set since"),
        ("cap", "import"): _recorded("permits nothing: what is imported authorises nothing"),
        ("sys", "ruleset"): _recorded("a ruleset is never taken back"),
        ("sys", "prune"): _recorded("what is forgotten stays forgotten"),
        ("sys", "rebase"): _recorded("an epoch is never taken back"),
        ("sys", "clock"): _recorded(
            "log time was set back once; anew it would be set back again, by a copy that comes late"
        ),
        ("sys", "liveness"): _recorded("permits nothing. What an owner did since counts"),
        ("sys", "evidence"): _recorded("permits nothing outside; what is proven stays proven"),
        ("sys", "tick"): _anew("is not remembered at all: time passes"),
    }
)
"""Every verb of the ledger's planes."""

JUDGED_ANEW: Final = frozenset(name for name, repeat in REPEATS.items() if repeat.anew)
"""Verbs whose recorded ``ok`` is not repeated but judged again."""
