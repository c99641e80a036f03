"""What codes mean, and the reasons that are no errors: of a lost lease, of a turn that ended."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from schemas.admission import LossReason
from schemas.codes import Code

CODES: Final[Mapping[Code, str]] = MappingProxyType(
    {
        Code.BAD_REQUEST: "What was sent is not what the contract says; `error.field` names where.",
        Code.UNSUPPORTED_VERSION: "It is of a version that is not spoken here.",
        Code.UNAUTHENTICATED: "The broker does not know who this is.",
        Code.PERMISSION_DENIED: "Whoever this is may not do that.",
        Code.NOT_FOUND: "What it is about does not exist.",
        Code.ALREADY_EXISTS: "It exists, or existed, and there is only ever one.",
        Code.CONFLICT: "Something else stands in its place; `data` shows it.",
        Code.FAILED_PRECONDITION: "It is not in a state in which that can be done.",
        Code.DEADLINE_EXCEEDED: "No answer came in time; the outcome is unknown.",
        Code.EXPIRED: "Its time is over.",
        Code.CANCELLED: "A Stop or a bump ended it.",
        Code.FENCED: "Somebody else holds the lease, or nobody does any more.",
        Code.UNAVAILABLE: "It cannot be done at present.",
        Code.RESOURCE_EXHAUSTED: "There is no room for it.",
        Code.INTERNAL: "Something is broken here; the worker's log says what.",
    }
)
"""What kind of trouble a code is."""

LOST: Final[Mapping[LossReason, str]] = MappingProxyType(
    {
        "start-timeout": "No intent was accepted within the policy's `start_timeout_ms`; the turn "
        "is queued again, or failed the third time.",
        "owner-dead": "The connector was proven gone before its intent; the turn is queued again, "
        "or failed the third time.",
        "recovery": "The connector was proven gone after its intent; the turn is a debt that keeps "
        "its seat.",
        "seat-released": "Connector, child and process group were proven gone; the seat is free, "
        "and the turn stays `recovery_required`.",
        "confirmed-not-dispatched": "An operator's word that nothing was sent; the turn is queued "
        "again.",
        "confirmed-completed": "An operator's word that it completed.",
        "acknowledged-unknown": "An operator freed the seat; nobody knows how the turn ended.",
    }
)
"""``reason`` of a lost lease."""

ENDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "abandoned": "Its owner's word that nothing was written.",
        "owner-dead": "Its owner died while it was queued, and no new life of it came in time.",
        "start-timeout": "Its seat was taken back three times before an intent.",
        "resolved": "An operator's word that it completed.",
        "proven-gone": "Its processes were proven gone after the intent.",
        "acknowledged-unknown": "An operator freed its seat; nobody knows how it ended.",
    }
)
"""``reason`` of a turn that ended, where its state does not say."""
