"""Subjects and keys: what is built is read back, nothing else is, and no two ids meet."""

import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import subjects, tokens
from schemas.codes import BadInput
from schemas.limits import MAX_SAFE_INTEGER, MAX_SUBJECT_BYTES
from schemas.names import Names
from schemas.subjects import Checkpoint, Speaker, Timer

NAMES = Names("tidegate", "main")
UID = "0123456789abcdefghijklmnop"
SPEAKER = Speaker("alice", UID)
TARGET = Checkpoint("acme.runs", "t-1")
OWNER = Timer("acme.runs", UID, "7", "t-1", "armed")

NAME_CHARS = string.ascii_letters + string.digits + "_-"
NAME = st.text(NAME_CHARS, min_size=1, max_size=64)
UIDS = st.text(string.ascii_lowercase + string.digits, min_size=26, max_size=32)
EPOCHS = st.integers(0, MAX_SAFE_INTEGER).map(str)
GENERATIONS = st.integers(1, MAX_SAFE_INTEGER)
LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True)
ENDPOINTS = st.lists(LABEL, min_size=1, max_size=5).map(".".join).filter(tokens.is_endpoint)
SPEAKERS = st.builds(Speaker, NAME, UIDS)
TARGETS = st.builds(Checkpoint, ENDPOINTS, NAME)
TIMERS = st.builds(
    Timer, ENDPOINTS, UIDS, EPOCHS, NAME, st.sampled_from(sorted(subjects.TIMER_KINDS))
)
PLANES = st.sampled_from(["cp", "adm", "cap", "sys"])
VERBS = st.from_regex(r"[a-z][a-z_]{0,23}", fullmatch=True)
RESULT_IDS = st.from_regex(r"[0-9]{1,16}(-[0-9]{1,16}){0,2}", fullmatch=True)
NAMESES = st.builds(
    Names,
    st.text(NAME_CHARS, min_size=1, max_size=32),
    st.text(NAME_CHARS, min_size=1, max_size=64).filter(lambda s: not s.startswith("REQ_")),
)


@given(names=NAMESES, speaker=SPEAKERS, plane=PLANES, verb=VERBS, key=st.lists(NAME, max_size=4))
def test_a_command_comes_back(
    names: Names, speaker: Speaker, plane: str, verb: str, key: list[str]
) -> None:
    subject = subjects.command(names, speaker, plane, verb, *key)
    parsed = subjects.parse_command(names, subject)
    assert (parsed.speaker, parsed.plane, parsed.verb, parsed.key) == (
        speaker,
        plane,
        verb,
        tuple(key),
    )


@given(names=NAMESES, speaker=SPEAKERS, target=TARGETS)
def test_a_checkpoint_command_comes_back(
    names: Names, speaker: Speaker, target: Checkpoint
) -> None:
    subject = subjects.checkpoint_command(names, speaker, "resume", target)
    parsed = subjects.parse_command(names, subject)
    assert subjects.checkpoint_key(parsed.key) == target


@given(names=NAMESES, speaker=SPEAKERS, plane=PLANES, verb=VERBS, result_id=RESULT_IDS)
def test_a_result_comes_back(
    names: Names, speaker: Speaker, plane: str, verb: str, result_id: str
) -> None:
    subject = subjects.result(names, speaker, plane, verb, result_id)
    assert subjects.parse_result(names, subject) == subjects.Addressed(
        speaker, plane, verb, result_id
    )
    assert subject.startswith(subjects.results_of(names, speaker)[:-1])


@given(names=NAMESES, owner=SPEAKERS, request_id=NAME, generation=GENERATIONS)
def test_a_grant_comes_back(names: Names, owner: Speaker, request_id: str, generation: int) -> None:
    subject = subjects.grant(names, owner, request_id, generation)
    assert subjects.parse_grant(names, subject) == (owner, request_id, generation)
    assert subject.startswith(subjects.grants_of(names, owner)[:-1])


@given(names=NAMESES, kind=VERBS, target=TARGETS, generation=GENERATIONS)
def test_a_fact_of_a_checkpoint_comes_back(
    names: Names, kind: str, target: Checkpoint, generation: int
) -> None:
    subject = subjects.checkpoint_fact(names, kind, target, generation)
    assert subjects.parse_checkpoint_fact(names, subject) == (kind, target, generation)


@given(
    names=NAMESES,
    speaker=SPEAKERS,
    plane=PLANES,
    name=VERBS,
    key=st.lists(st.text("aZ9_-", min_size=1, max_size=9), max_size=2).map(tuple),
)
def test_a_query_comes_back(
    names: Names, speaker: Speaker, plane: str, name: str, key: tuple[str, ...]
) -> None:
    subject = subjects.query(names, speaker, plane, name, *key)
    assert subjects.parse_query(names, subject, len(key)) == (speaker, plane, name, key)


@given(names=NAMESES, speaker=SPEAKERS)
def test_a_heartbeat_comes_back(names: Names, speaker: Speaker) -> None:
    assert subjects.parse_heartbeat(names, subjects.heartbeat(names, speaker)) == speaker


@given(names=NAMESES, target=TARGETS)
def test_a_settle_fact_comes_back(names: Names, target: Checkpoint) -> None:
    assert subjects.parse_settle_fact(names, subjects.settle_fact(names, target)) == target


@given(names=NAMESES, owner=TIMERS)
def test_a_timer_comes_back(names: Names, owner: Timer) -> None:
    assert subjects.parse_timer(names, subjects.timer(names, owner, owner.kind)) == owner


@given(target=TARGETS)
def test_a_status_key_comes_back(target: Checkpoint) -> None:
    assert subjects.parse_status_key(subjects.status_key(target)) == target


@given(names=NAMESES, owner=TIMERS, speaker=SPEAKERS, target=TARGETS)
def test_the_longest_subject_is_within_the_bound(
    names: Names, owner: Timer, speaker: Speaker, target: Checkpoint
) -> None:
    for subject in (
        subjects.timer(names, owner, "schedule"),
        subjects.checkpoint_command(names, speaker, "heartbeat", target),
        subjects.result(names, speaker, "adm", "a" * 24, "1" * 16 + "-" + "1" * 16),
        subjects.settle_fact(names, target),
    ):
        assert len(subject.encode()) <= MAX_SUBJECT_BYTES


def every_subject(speaker: Speaker, target: Checkpoint) -> list[str]:
    """One subject or key of each family, all about one speaker and one checkpoint."""
    owner = subjects.own_timer(NAMES, target)
    return [
        subjects.checkpoint_command(NAMES, speaker, "mint", target),
        subjects.result(NAMES, speaker, "cp", "mint", "1"),
        subjects.grant(NAMES, speaker, target.token, 1),
        subjects.checkpoint_fact(NAMES, "waiting", target, 1),
        subjects.query(NAMES, speaker, "cp", "show"),
        subjects.heartbeat(NAMES, speaker),
        subjects.settle_fact(NAMES, target),
        *(subjects.timer(NAMES, owner, kind) for kind in sorted(subjects.TIMER_KINDS)),
        subjects.spec_key(target),
        subjects.status_key(target),
        subjects.prompt_key(target),
        subjects.answer_key(target, "a"),
    ]


@given(one=st.tuples(SPEAKERS, TARGETS), other=st.tuples(SPEAKERS, TARGETS))
def test_no_two_ids_meet_in_any_subject(
    one: tuple[Speaker, Checkpoint], other: tuple[Speaker, Checkpoint]
) -> None:
    mine, theirs = every_subject(*one), every_subject(*other)
    assert len(set(mine)) == len(mine)
    for built, against in zip(mine, theirs, strict=True):
        family = built.split(".")[2] if built.startswith(NAMES.prefix) else "key"
        match family:
            case "cmd":
                same = one == other
            case "res" | "qry" | "hb":
                same = one[0] == other[0]
            case "grant":
                same = (one[0], one[1].token) == (other[0], other[1].token)
            case _:
                same = one[1] == other[1]
        assert (built == against) is same


DOTTED = st.lists(st.text("ab._-", min_size=1, max_size=4), min_size=1, max_size=3).map(".".join)


@given(one=DOTTED, other=DOTTED, token=st.text("ab._-", min_size=1, max_size=4))
def test_whatever_ids_are_accepted_are_told_apart(one: str, other: str, token: str) -> None:
    """Dots, dashes and underscores are the characters that could make two ids one."""
    keys = set()
    accepted = set()
    for endpoint in (one, other):
        try:
            target = Checkpoint(endpoint, token)
        except BadInput:
            continue
        accepted.add(target)
        keys.add(subjects.status_key(target))
    assert len(keys) == len(accepted)


PARSERS: dict[str, tuple[str, Callable[[Names, str], Any]]] = {
    "result": (subjects.result(NAMES, SPEAKER, "cp", "mint", "12"), subjects.parse_result),
    "grant": (subjects.grant(NAMES, SPEAKER, "r-1", 3), subjects.parse_grant),
    "fact": (
        subjects.checkpoint_fact(NAMES, "waiting", TARGET, 1),
        subjects.parse_checkpoint_fact,
    ),
    "query": (subjects.query(NAMES, SPEAKER, "cp", "show"), subjects.parse_query),
    "query about": (
        subjects.query(NAMES, SPEAKER, "cap", "show", "alice"),
        lambda names, subject: subjects.parse_query(names, subject, 1),
    ),
    "heartbeat": (subjects.heartbeat(NAMES, SPEAKER), subjects.parse_heartbeat),
    "settle fact": (subjects.settle_fact(NAMES, TARGET), subjects.parse_settle_fact),
    "timer": (subjects.timer(NAMES, OWNER, "armed"), subjects.parse_timer),
    "status key": (
        subjects.status_key(TARGET),
        lambda _, key: subjects.parse_status_key(key),
    ),
}


@pytest.mark.parametrize("family", PARSERS)
def test_a_parser_reads_exactly_one_arity(family: str) -> None:
    subject, parse = PARSERS[family]
    assert parse(NAMES, subject) is not None
    parts = subject.split(".")
    assert parse(NAMES, subject + ".x") is None
    assert parse(NAMES, subject + ".") is None
    assert parse(NAMES, "." + subject) is None
    assert parse(NAMES, ".".join(parts[:-1])) is None
    assert parse(NAMES, "") is None
    assert parse(NAMES, subject.upper()) is None


@pytest.mark.parametrize("family", PARSERS)
@pytest.mark.parametrize("junk", ["", "*", ">", "é", "a b", "x" * 300, "a\n", "a*"])
def test_a_parser_refuses_a_wrong_token_in_any_place(family: str, junk: str) -> None:
    subject, parse = PARSERS[family]
    parts = subject.split(".")
    for place in range(len(parts)):
        spoiled = ".".join([*parts[:place], junk, *parts[place + 1 :]])
        assert parse(NAMES, spoiled) is None, spoiled


@pytest.mark.parametrize("family", [name for name in PARSERS if name != "status key"])
def test_a_parser_reads_its_own_space_and_family_only(family: str) -> None:
    subject, parse = PARSERS[family]
    assert parse(Names("tidegate", "other"), subject) is None
    assert parse(Names("cotal", "main"), subject) is None
    others = (other for name, (other, _) in PARSERS.items() if name != family)
    assert all(parse(NAMES, other) is None for other in others)


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("", "bad-subject"),
        ("tidegate.main.cmd", "bad-subject"),
        (f"tidegate.main.cmd.alice.{UID}.cp", "bad-subject"),
        (f"tidegate.main.cmd.alice.{UID}.cp.", "bad-subject"),
        (f"tidegate.main.cmd.alice.{UID}.cp.mint..t", "bad-subject"),
        (f"tidegate.other.cmd.alice.{UID}.cp.mint.runs.t", "bad-subject"),
        (f"cotal.main.cmd.alice.{UID}.cp.mint.runs.t", "bad-subject"),
        (f"tidegate.main.cmd.é.{UID}.cp.mint.runs.t", "bad-principal"),
        (f"tidegate.main.cmd.a*.{UID}.cp.mint.runs.t", "bad-principal"),
        (f"tidegate.main.cmd.{'a' * 65}.{UID}.cp.mint.runs.t", "bad-principal"),
        ("tidegate.main.cmd.alice.short.cp.mint.runs.t", "bad-uid"),
        (f"tidegate.main.cmd.alice.{UID.upper()}.cp.mint.runs.t", "bad-uid"),
        (f"tidegate.main.cmd.alice.{'a' * 33}.cp.mint.runs.t", "bad-uid"),
    ],
)
def test_a_command_whose_speaker_does_not_parse_is_refused_by_name(
    subject: str, reason: str
) -> None:
    with pytest.raises(BadInput) as caught:
        subjects.parse_command(NAMES, subject)
    assert (caught.value.field, caught.value.reason) == ("subject", reason)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ((), "bad-key"),
        (("runs",), "bad-key"),
        (("runs", "t", "u"), "bad-key"),
        (("Runs", "t"), "bad-endpoint"),
        (("ru*", "t"), "bad-endpoint"),
        (("é", "t"), "bad-endpoint"),
        (("_runs", "t"), "bad-endpoint"),
        (("runs_", "t"), "bad-endpoint"),
        (("a__b", "t"), "bad-endpoint"),
        (("a" * 65, "t"), "bad-endpoint"),
        (("runs\n", "t"), "bad-endpoint"),
        (("runs", "a*"), "bad-token"),
        (("runs", "é"), "bad-token"),
        (("runs", "a b"), "bad-token"),
        (("runs", "x" * 300), "bad-token"),
        (("runs", "t\n"), "bad-token"),
        (("runs", ""), "bad-token"),
    ],
)
def test_a_key_that_names_no_checkpoint_is_refused_by_name(
    key: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(BadInput) as caught:
        subjects.checkpoint_key(key)
    assert (caught.value.field, caught.value.reason) == ("subject", reason)


BAD = ["", "a.b", "a*", "é", "a b", "x" * 300, "a\n", ">", "a\tb"]


@pytest.mark.parametrize("bad", BAD)
def test_no_builder_takes_a_token_outside_its_grammar(bad: str) -> None:
    endpoint_too = () if bad == "a.b" else (lambda: Checkpoint(bad, "t"),)
    for build in (
        lambda: Speaker(bad, UID),
        lambda: Speaker("alice", bad),
        lambda: Checkpoint("runs", bad),
        lambda: Timer("runs", bad, "0", "t", "armed"),
        lambda: Timer("runs", UID, bad, "t", "armed"),
        lambda: Timer("runs", UID, "0", bad, "armed"),
        lambda: Timer("runs", UID, "0", "t", bad),
        lambda: subjects.timer(NAMES, OWNER, bad),
        lambda: subjects.command(NAMES, SPEAKER, "cp", bad),
        lambda: subjects.result(NAMES, SPEAKER, bad, "mint", "1"),
        lambda: subjects.result(NAMES, SPEAKER, "cp", "mint", bad),
        lambda: subjects.grant(NAMES, SPEAKER, bad, 1),
        lambda: subjects.checkpoint_fact(NAMES, bad, TARGET, 1),
        lambda: subjects.ledger_fact(NAMES, "adm", bad, (), "1-2-3"),
        lambda: subjects.ledger_fact(NAMES, "adm", "kind", (bad,), "1-2-3"),
        lambda: subjects.ledger_fact(NAMES, "adm", "kind", (), bad),
        lambda: subjects.query(NAMES, SPEAKER, "cp", bad),
        lambda: subjects.query(NAMES, SPEAKER, bad, "show"),
        lambda: subjects.query(NAMES, SPEAKER, "cap", "show", bad),
        lambda: subjects.answer_key(TARGET, bad),
        *endpoint_too,
    ):
        with pytest.raises(BadInput):
            build()


@pytest.mark.parametrize("bad", ["", "a.b", "a*", "a b", "a\n", ">", "a\rb", "a\tb"])
def test_a_key_that_is_not_one_token_cannot_be_built(bad: str) -> None:
    with pytest.raises(BadInput) as caught:
        subjects.command(NAMES, SPEAKER, "cap", "stop", bad)
    assert caught.value.field == "key"


def test_a_subject_beyond_1024_bytes_cannot_be_built() -> None:
    head = len(subjects.command(NAMES, SPEAKER, "cap", "stop", "x")) - 1
    fits = "x" * (MAX_SUBJECT_BYTES - head)
    assert len(subjects.command(NAMES, SPEAKER, "cap", "stop", fits)) == MAX_SUBJECT_BYTES
    with pytest.raises(BadInput) as caught:
        subjects.command(NAMES, SPEAKER, "cap", "stop", fits + "x")
    assert caught.value.reason == "too-long"
    with pytest.raises(BadInput):
        subjects.command(NAMES, SPEAKER, "cap", "stop", "é" * (len(fits) // 2 + 1))


def test_a_command_without_a_speaker_is_answered_where_nobody_listens() -> None:
    assert subjects.result(NAMES, None, "", "", "12") == "tidegate.main.res._.invalid.12"
    assert subjects.result(NAMES, None, "adm", "x", "0-12") == "tidegate.main.res._.invalid.0-12"


def test_the_result_of_an_unknown_verb_stays_one_token() -> None:
    for verb in ("mint.x", "é", "MINT", "a" * 25, "", "*"):
        subject = subjects.result(NAMES, SPEAKER, "cp", verb, "12")
        assert subject == f"tidegate.main.res.alice.{UID}.cp.invalid.12"


def test_every_replica_arms_under_the_same_instance() -> None:
    assert subjects.own_instance("main") == "viu5drslqzsg7sknuuhr3itl4m"
    assert tokens.is_uid(subjects.own_instance("main"))
    assert subjects.own_instance("main") != subjects.own_instance("other")
    assert subjects.own_timer(NAMES, TARGET).epoch == "0"
