"""Patterns, and what a credential's rights say about its role."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.names import Names
from schemas.roles import Role
from worker.bus import users
from worker.doctor import rights
from worker.doctor.findings import Severity
from worker.doctor.patterns import covers, overlap
from worker.doctor.rights import Rights, UserInfo

NAMES = Names("tidegate", "main")
OTHER = Names("tidegate", "other")
parts = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4)
patterns = st.builds(
    lambda head, tail: ".".join([*head, *tail]) or "a",
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


def matches(pattern: str, subject: str) -> bool:
    """A server's rule, written as the server's documentation says it."""
    wanted, given_ = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        if len(given_) < len(wanted):
            return False
        wanted, given_ = wanted[:-1], given_[: len(wanted) - 1]
    return len(wanted) == len(given_) and all(
        w in ("*", g) for w, g in zip(wanted, given_, strict=True)
    )


@given(patterns, patterns, parts)
def test_what_covers_holds_all_and_what_does_not_overlap_holds_nothing(
    one: str, other: str, subject_parts: list[str]
) -> None:
    subject = ".".join(subject_parts)
    if covers(one, other) and matches(other, subject):
        assert matches(one, subject)
    if matches(one, subject) and matches(other, subject):
        assert overlap(one, other)


@given(patterns, parts)
def test_a_pattern_covers_exactly_the_subjects_it_matches(
    pattern: str, subject_parts: list[str]
) -> None:
    subject = ".".join(subject_parts)
    assert covers(pattern, subject) == matches(pattern, subject) == overlap(pattern, subject)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (">", "a.b", True),
        (">", ">", True),
        ("a.>", "a", False),
        ("a.>", "a.>", True),
        ("a.*", "a.>", False),
        ("a.>", "a.*", True),
        ("a.*.c", "a.b.c", True),
        ("a.b", "a.*", False),
    ],
)
def test_covering(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) is expected


def info(grants: list[users.Grant], spaces: list[Names] | None = None) -> UserInfo:
    """What a broker would say of a user with the rights of these grants."""
    made = [users.user(grant, spaces or [NAMES]) for grant in grants]
    publish = tuple(subject for one in made for subject in one.publish or ())
    subscribe = tuple(subject for one in made for subject in one.subscribe or ())
    return UserInfo(grants[0].name, "C", Rights(publish, ()), Rights(subscribe, ()))


def changed(found: UserInfo, *, add: tuple[str, ...] = (), drop: str = "\0") -> UserInfo:
    allow = (*(s for s in found.publish.allow or () if drop not in s), *add)
    return UserInfo(found.user, found.account, Rights(allow, found.publish.deny), found.subscribe)


def judge(found: UserInfo, *spaces: Names, is_worker: bool = False) -> list[tuple[Severity, str]]:
    findings = rights.examine(found, spaces or [NAMES], is_worker=is_worker, own_broker=False)
    return [(finding.severity, finding.found) for finding in findings]


GRANTS = {grant.role: grant for grant in users.one_of_each(["review.eu", "runs"], ["maria", "p-2"])}
CLIENTS = [role for role in Role if role is not Role.WORKER]


@pytest.mark.parametrize("role", CLIENTS)
def test_the_user_of_a_role_is_recognised_and_is_fine(role: Role) -> None:
    ((severity, found),) = judge(info([GRANTS[role]]))
    assert severity is Severity.FINE
    assert f"the rights of {role.value}, and no other" in found


def test_the_workers_user_is_fine_in_every_space() -> None:
    found = info([GRANTS[Role.WORKER]], [NAMES, OTHER])
    ((severity, said),) = judge(found, NAMES, OTHER, is_worker=True)
    assert severity is Severity.FINE
    assert "no other" in said


def test_a_user_of_two_roles_is_said_to_be_of_both() -> None:
    both = [users.Grant(Role.MINTER, "ann", ("runs",)), users.Grant(Role.HOLDER, "ann")]
    ((severity, found),) = judge(info(both))
    assert severity is Severity.FINE
    assert "holder and minter" in found


def test_a_right_that_is_missing_is_named() -> None:
    found = changed(info([GRANTS[Role.HOLDER]]), drop="DIRECT.GET")
    ((severity, said),) = judge(found)
    assert severity is Severity.WARNING
    assert "lacks: publish $JS.API.DIRECT.GET" in said


@pytest.mark.parametrize("whose", [".*", ".bob", ""])
def test_a_delegate_that_may_ask_about_anybody_elses_cap_is_a_danger(whose: str) -> None:
    beyond = f"tidegate.main.qry.delegate.*.cap.show{whose}"
    ((severity, said),) = judge(changed(info([GRANTS[Role.DELEGATE]]), add=(beyond,)))
    assert severity is Severity.DANGER
    assert f"may also: publish {beyond}" in said


def test_a_delegate_with_the_rights_of_before_lacks_the_question_about_its_persons() -> None:
    before = "tidegate.main.qry.delegate.*.cap.show"
    found = changed(info([GRANTS[Role.DELEGATE]]), drop=".cap.show", add=(before,))
    (_, lacking), (severity, beyond) = judge(found)
    assert f"lacks: publish {before}.maria, publish {before}.p-2" in lacking
    assert (severity, f"may also: publish {before}" in beyond) == (Severity.DANGER, True)


def test_a_worker_without_a_right_is_a_danger() -> None:
    ((severity, said),) = judge(changed(info([GRANTS[Role.WORKER]]), drop=".armed"), is_worker=True)
    assert severity is Severity.DANGER
    assert "lacks: publish tidegate.main.ept.*.*.*.*.armed" in said


def test_a_right_that_is_denied_again_is_missing() -> None:
    found = info([GRANTS[Role.WORKER]])
    denied = UserInfo("worker", "W", Rights(None, ("$JS.>",)), found.subscribe)
    ((severity, said),) = judge(denied, is_worker=True)
    assert severity is Severity.DANGER
    assert "$JS.ACK.>" in said


@pytest.mark.parametrize(
    "more",
    [
        "tidegate.main.ept.*.*.*.*.fire",
        "$JS.API.STREAM.DELETE.>",
        "tidegate.main.>",
        "$KV.tidegate_records_main.>",
        "*.main.epf.>",
    ],
)
def test_what_a_role_must_not_have_is_a_danger(more: str) -> None:
    findings = judge(changed(info([GRANTS[Role.CONNECTOR]]), add=(more,)))
    assert any(severity is Severity.DANGER and more in said for severity, said in findings)


def test_a_worker_that_may_fire_is_warned_of() -> None:
    more = "tidegate.main.ept.*.*.*.*.fire"
    ((severity, said),) = judge(changed(info([GRANTS[Role.WORKER]]), add=(more,)), is_worker=True)
    assert severity is Severity.WARNING
    assert more in said


def test_other_applications_rights_are_their_own_affair() -> None:
    ((severity, _),) = judge(changed(info([GRANTS[Role.HOLDER]]), add=("shop.orders.>",)))
    assert severity is Severity.FINE


def test_whoever_may_speak_as_another_is_a_danger() -> None:
    other = users.user(users.Grant(Role.HOLDER, "mallory"), [NAMES]).publish or ()
    findings = judge(changed(info([GRANTS[Role.HOLDER]]), add=other))
    assert any("may speak as holder, mallory" in said for _, said in findings)
    anyone = changed(info([GRANTS[Role.HOLDER]]), add=("tidegate.main.cmd.*.*.cp.resume.*.*",))
    assert any("may speak as anyone" in said for _, said in judge(anyone))


def test_an_unlimited_client_and_one_without_a_role_are_dangers() -> None:
    unlimited = UserInfo("client", "C", Rights(None, ()), Rights(None, ()))
    assert judge(unlimited)[0][0] is Severity.DANGER
    nobody = UserInfo("shop", "C", Rights(("shop.>",), ()), Rights(("shop.>",), ()))
    assert "no role of Tidegate" in judge(nobody)[0][1]
    elsewhere = info([GRANTS[Role.HOLDER]])
    assert "no role of Tidegate" in judge(elsewhere, OTHER)[0][1]


def test_a_broker_that_says_nothing_is_a_warning() -> None:
    (finding,) = rights.examine(None, [NAMES], is_worker=True, own_broker=False)
    assert finding.severity is Severity.WARNING


def test_the_status_is_asked_for_in_the_name_one_has() -> None:
    assert rights.speaker_of(info([GRANTS[Role.OPERATOR]]), NAMES) == "_op"
    assert rights.speaker_of(info([GRANTS[Role.MINTER]]), NAMES) == "minter"
    assert rights.speaker_of(info([GRANTS[Role.WORKER]]), NAMES) == "_op"
    assert rights.speaker_of(info([GRANTS[Role.MINTER]]), Names("tidegate", "other")) is None


def test_of_several_names_a_user_speaks_as_its_own() -> None:
    both = info([GRANTS[Role.MINTER], GRANTS[Role.CONNECTOR]])
    assert rights.principals_of(both, NAMES) == ("minter", "connector")
