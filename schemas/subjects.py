"""Subjects: built and parsed with exact arity (DESIGN section 2).

The subject, never the body, says who speaks and about what. Builders raise ``BadInput`` for a token
outside its grammar; parsers return ``None`` for anything that a builder could not have made, except
``parse_command``, which says what is wrong so that a stored command can be refused by name.
"""

import base64
import functools
import hashlib
import re
from dataclasses import dataclass
from typing import Final

from schemas import tokens
from schemas.codes import BadInput
from schemas.limits import MAX_SUBJECT_BYTES
from schemas.names import Names

PLANES: Final = frozenset({"cp", "adm", "cap", "sys"})
TIMER_KINDS: Final = frozenset({"schedule", "armed", "fire", "cancel"})
OWN_EPOCH: Final = "0"
HEARD: Final = "heard"
"""Family under which the workers' account lets out what is stored: ``<prefix>.heard.res.…``; the
clients' account hears it as ``<prefix>.res.…``."""

UNKNOWN_SPEAKER: Final = "_"
"""Stands where a command's speaker did not parse: its result goes to ``res._.invalid.<id>``."""

INVALID_VERB: Final = "invalid"

_RESULT_ID: Final = re.compile(r"[0-9]{1,16}(?:-[0-9]{1,20}){0,2}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,256}(?:\.[A-Za-z0-9_-]{1,256})*")


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who speaks: a principal and the id of its current life."""

    principal: str
    uid: str

    def __post_init__(self) -> None:
        _check("principal", tokens.is_principal(self.principal))
        _check("uid", tokens.is_uid(self.uid))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Names one checkpoint: its endpoint (dotted form) and its token."""

    endpoint: str
    token: str

    def __post_init__(self) -> None:
        _check("endpoint", tokens.is_endpoint(self.endpoint))
        _check("token", tokens.is_name(self.token))

    @property
    def wire_endpoint(self) -> str:
        """The endpoint as one subject token."""
        return tokens.endpoint_to_wire(self.endpoint)


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command subject.

    Attributes:
        speaker: Who speaks.
        plane: ``cp``, ``adm``, ``cap`` or ``sys``.
        verb: As written; it may be unknown.
        key: What follows the verb, token by token; its grammar is the verb's.
    """

    speaker: Speaker
    plane: str
    verb: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timer:
    """A parsed timer subject; ``owner`` is everything but the kind.

    Attributes:
        endpoint: Dotted form.
        instance: The owner's instance id.
        epoch: The owner's epoch, as written.
        token: The timer id, equal to the checkpoint's token.
        kind: ``schedule``, ``armed``, ``fire`` or ``cancel``.
    """

    endpoint: str
    instance: str
    epoch: str
    token: str
    kind: str

    def __post_init__(self) -> None:
        _check("endpoint", tokens.is_endpoint(self.endpoint))
        _check("instance", tokens.is_uid(self.instance))
        _check("epoch", tokens.is_epoch(self.epoch))
        _check("token", tokens.is_name(self.token))
        _check("kind", self.kind in TIMER_KINDS)


@dataclass(frozen=True, slots=True)
class Addressed:
    """A parsed result subject.

    Attributes:
        speaker: Whose command it answers.
        plane: The command's plane.
        verb: The command's verb, or ``invalid``.
        result_id: ``<epoch>-<seq>`` or ``<seq>``; one more number: nobody asked.
    """

    speaker: Speaker
    plane: str
    verb: str
    result_id: str


def own_instance(space: str) -> str:
    r"""The constant instance under which every replica arms the same subject.

    First 26 characters of lower-case base32 of SHA-256 of ``"tidegate/instance/1\0" + space``
    (spec/checkpoints.md, Definitions).
    """
    digest = hashlib.sha256(b"tidegate/instance/1\0" + space.encode()).digest()
    return base64.b32encode(digest).decode().lower()[:26]


def command(names: Names, speaker: Speaker, plane: str, verb: str, *key: str) -> str:
    """The subject of a command; ``key`` tokens are checked only for being single tokens."""
    _check("verb", tokens.is_verb(verb))
    for part in key:
        _check("key", bool(part) and not any(c in part for c in ".*> \t\r\n"))
    tail = "".join(f".{part}" for part in key)
    return _bounded(f"{names.prefix}.cmd.{speaker.principal}.{speaker.uid}.{plane}.{verb}{tail}")


def checkpoint_command(names: Names, speaker: Speaker, verb: str, target: Checkpoint) -> str:
    """The subject of a checkpoint command."""
    return command(names, speaker, "cp", verb, target.wire_endpoint, target.token)


def parse_command(names: Names, subject: str) -> Command:
    """Parse a command's subject.

    Raises:
        BadInput: Field ``subject``, if the speaker, the plane or the arity is wrong. The key's own
            grammar is checked by the plane, which knows the verb.
    """
    parts = _split(names, subject, "cmd")
    if parts is None or len(parts) < 4 or not all(parts):
        raise BadInput("subject", "bad-subject", "the subject is not a command's")
    principal, uid, plane, verb, *key = parts
    return Command(_life(principal, uid), plane, verb, tuple(key))


@functools.lru_cache(maxsize=8_192)
def _life(principal: str, uid: str) -> Speaker:
    """The same few speak again and again; a life is checked once."""
    if not tokens.is_principal(principal):
        raise BadInput("subject", "bad-principal", "the principal does not match its grammar")
    if not tokens.is_uid(uid):
        raise BadInput("subject", "bad-uid", "the uid does not match [a-z0-9]{26,32}")
    return Speaker(principal, uid)


def checkpoint_key(key: tuple[str, ...]) -> Checkpoint:
    """Read ``<endpoint>.<token>`` behind a checkpoint verb.

    Raises:
        BadInput: Field ``subject`` with reason ``bad-key``, ``bad-endpoint`` or ``bad-token``.
    """
    if len(key) != 2:
        raise BadInput("subject", "bad-key", "the subject must end in <endpoint>.<token>")
    endpoint = tokens.endpoint_from_wire(key[0])
    if not tokens.is_endpoint(endpoint):
        raise BadInput("subject", "bad-endpoint", "the endpoint does not match its grammar")
    if not tokens.is_name(key[1]):
        raise BadInput("subject", "bad-token", "the token does not match [A-Za-z0-9_-]{1,64}")
    return Checkpoint(endpoint, key[1])


def result(names: Names, speaker: Speaker | None, plane: str, verb: str, result_id: str) -> str:
    """Where the result of a stored command goes; ``speaker`` is ``None`` if it did not parse."""
    _check("result id", _RESULT_ID.fullmatch(result_id) is not None)
    if speaker is None:
        return f"{names.prefix}.res.{UNKNOWN_SPEAKER}.{INVALID_VERB}.{result_id}"
    _check("plane", plane in PLANES)
    shown = verb if tokens.is_verb(verb) else INVALID_VERB
    return f"{names.prefix}.res.{speaker.principal}.{speaker.uid}.{plane}.{shown}.{result_id}"


def let_out(names: Names, subject: str) -> str:
    """Where the workers' account lets clients hear what belongs on ``subject``."""
    head = f"{names.prefix}."
    _check("subject", subject.startswith(head))
    return f"{head}{HEARD}.{subject.removeprefix(head)}"


def parse_result(names: Names, subject: str) -> Addressed | None:
    """Read a result's subject back; ``None`` also for one whose command had no speaker."""
    parts = _split(names, subject, "res")
    if parts is None or len(parts) != 5:
        return None
    speaker, (plane, verb, result_id) = _speaker(parts), parts[2:]
    well_formed = (
        speaker is not None
        and plane in PLANES
        and tokens.is_verb(verb)
        and _RESULT_ID.fullmatch(result_id) is not None
    )
    return Addressed(speaker, plane, verb, result_id) if speaker and well_formed else None


def results_of(names: Names, speaker: Speaker) -> str:
    """What a client subscribes to for its own results."""
    return f"{names.prefix}.res.{speaker.principal}.{speaker.uid}.>"


def grant(names: Names, owner: Speaker, request_id: str, generation: int) -> str:
    """Where a granted seat is announced to its owner."""
    _check("request id", tokens.is_name(request_id))
    _check("generation", tokens.is_epoch(str(generation)))
    return f"{names.prefix}.grant.{owner.principal}.{owner.uid}.{request_id}.{generation}"


def parse_grant(names: Names, subject: str) -> tuple[Speaker, str, int] | None:
    """Read owner, request id and generation of a grant's subject back."""
    parts = _split(names, subject, "grant")
    if parts is None or len(parts) != 4:
        return None
    owner, (request_id, generation) = _speaker(parts), parts[2:]
    if owner is None or not tokens.is_name(request_id) or not tokens.is_epoch(generation):
        return None
    return owner, request_id, int(generation)


def grants_of(names: Names, owner: Speaker) -> str:
    """What a connector subscribes to for its seats."""
    return f"{names.prefix}.grant.{owner.principal}.{owner.uid}.>"


def checkpoint_fact(names: Names, kind: str, target: Checkpoint, generation: int) -> str:
    """Subject of a public fact about a checkpoint, create-only per generation."""
    _check("kind", tokens.is_verb(kind))
    _check("generation", tokens.is_epoch(str(generation)))
    return f"{names.prefix}.fact.cp.{kind}.{target.wire_endpoint}.{target.token}.{generation}"


def parse_checkpoint_fact(names: Names, subject: str) -> tuple[str, Checkpoint, int] | None:
    """Read kind, checkpoint and generation of a checkpoint's fact back."""
    parts = _split(names, subject, "fact.cp")
    if parts is None or len(parts) != 4:
        return None
    kind, wire, token, generation = parts
    target = _checkpoint(wire, token)
    if target is None or not tokens.is_verb(kind) or not tokens.is_epoch(generation):
        return None
    return kind, target, int(generation)


def ledger_fact(names: Names, plane: str, kind: str, key: tuple[str, ...], fact_id: str) -> str:
    """Subject of a public fact of the ledger; ``fact_id`` is ``<epoch>-<seq>-<n>``."""
    tail = ".".join((plane, kind, *key, fact_id))
    _check("key", _PLAIN.fullmatch(tail) is not None and tail.count(".") == len(key) + 2)
    return _bounded(f"{names.prefix}.fact.{tail}")


def is_key(token: str) -> bool:
    """Whether a value can stand as one token of a query's key."""
    return _TOKEN.fullmatch(token) is not None


def query(names: Names, speaker: Speaker, plane: str, name: str, *key: str) -> str:
    """Subject of a query (request and reply); ``key`` is what ``QUERY_KEYS`` says, a token each."""
    _check("plane", plane in PLANES)
    _check("query", tokens.is_verb(name))
    _check("key", all(map(is_key, key)))
    words = (names.prefix, "qry", speaker.principal, speaker.uid, plane, name, *key)
    return _bounded(".".join(words))


def parse_query(
    names: Names, subject: str, keys: int = 0
) -> tuple[Speaker, str, str, tuple[str, ...]] | None:
    """Read speaker, plane, name and key of a query's subject back; the key has so many tokens."""
    parts = _split(names, subject, "qry")
    if parts is None or len(parts) != 4 + keys:
        return None
    speaker, (plane, name), key = _speaker(parts), parts[2:4], tuple(parts[4:])
    if speaker is None or plane not in PLANES or not tokens.is_verb(name):
        return None
    return (speaker, plane, name, key) if all(map(_TOKEN.fullmatch, key)) else None


def heartbeat(names: Names, speaker: Speaker) -> str:
    """Subject on which an owner beats."""
    return f"{names.prefix}.hb.{speaker.principal}.{speaker.uid}"


def parse_heartbeat(names: Names, subject: str) -> Speaker | None:
    """Read whose beat it is."""
    parts = _split(names, subject, "hb")
    return _speaker(parts) if parts is not None and len(parts) == 2 else None


def payload_key(principal: str, request_id: str, generation: int) -> str:
    """Key of a turn's sealed prompt: ``<principal>.<request id>[.<generation>]``.

    Args:
        principal: The enqueuer's.
        request_id: The turn.
        generation: The generation it was sealed for; the first one is not spelled out.
    """
    head = f"{principal}.{request_id}"
    return head if generation == 1 else f"{head}.{generation}"


def settle_fact(names: Names, target: Checkpoint) -> str:
    """Subject of the one settle fact of a checkpoint."""
    return f"{names.prefix}.epf.{target.wire_endpoint}.cp.{target.token}"


def parse_settle_fact(names: Names, subject: str) -> Checkpoint | None:
    """Read a settle fact's subject back."""
    parts = _split(names, subject, "epf")
    if parts is None or len(parts) != 3 or parts[1] != "cp":
        return None
    return _checkpoint(parts[0], parts[2])


def timer(names: Names, owner: Timer, kind: str) -> str:
    """Subject of one kind for the timer ``owner`` names."""
    _check("kind", kind in TIMER_KINDS)
    wire = tokens.endpoint_to_wire(owner.endpoint)
    return _bounded(
        f"{names.prefix}.ept.{wire}.{owner.instance}.{owner.epoch}.{owner.token}.{kind}"
    )


def own_timer(names: Names, target: Checkpoint) -> Timer:
    """The timer of a checkpoint that this platform arms itself."""
    return Timer(target.endpoint, own_instance(names.space), OWN_EPOCH, target.token, "armed")


def parse_timer(names: Names, subject: str) -> Timer | None:
    """Parse a timer subject of this space; ``None`` for anything else."""
    if len(subject.encode()) > MAX_SUBJECT_BYTES:
        return None
    parts = _split(names, subject, "ept")
    if parts is None or len(parts) != 5:
        return None
    wire, *rest = parts
    try:
        return Timer(tokens.endpoint_from_wire(wire), *rest)
    except BadInput:
        return None


def spec_key(target: Checkpoint) -> str:
    """Records key of a checkpoint's spec."""
    return f"cp.{target.wire_endpoint}.{target.token}.spec"


def status_key(target: Checkpoint) -> str:
    """Records key of a checkpoint's status."""
    return f"cp.{target.wire_endpoint}.{target.token}.status"


def prompt_key(target: Checkpoint) -> str:
    """Records key of a checkpoint's prompt."""
    return f"prompt.{target.wire_endpoint}.{target.token}"


def answer_key(target: Checkpoint, answer_id: str) -> str:
    """Records key of one answer to a checkpoint."""
    _check("answer id", tokens.is_name(answer_id))
    return f"answer.{target.wire_endpoint}.{target.token}.{answer_id}"


def parse_status_key(key: str) -> Checkpoint | None:
    """Read ``cp.<endpoint>.<token>.status`` back; ``None`` for any other key."""
    parts = key.split(".")
    if len(parts) != 4 or parts[0] != "cp" or parts[3] != "status":
        return None
    return _checkpoint(parts[1], parts[2])


def _split(names: Names, subject: str, family: str) -> list[str] | None:
    head = f"{names.prefix}.{family}."
    if not subject.startswith(head):
        return None
    return subject[len(head) :].split(".")


def _speaker(parts: list[str]) -> Speaker | None:
    try:
        return Speaker(parts[0], parts[1])
    except BadInput:
        return None


def _checkpoint(wire: str, token: str) -> Checkpoint | None:
    try:
        return checkpoint_key((wire, token))
    except BadInput:
        return None


def _bounded(subject: str) -> str:
    if len(subject.encode()) > MAX_SUBJECT_BYTES:
        raise BadInput("subject", "too-long", f"a subject is at most {MAX_SUBJECT_BYTES} bytes")
    return subject


def _check(field: str, ok: bool) -> None:
    if not ok:
        raise BadInput(field, "bad-token", f"{field} does not match its grammar")
