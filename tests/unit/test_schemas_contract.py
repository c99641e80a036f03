"""Results, roles and the printed schemas: what clients and operators build upon."""

import inspect
import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from schemas import commands, headers, limits, model, results, strict_json
from schemas.catalog import CATALOG, DIALECT
from schemas.codes import RETRYABLE, BadInput, Code
from schemas.commands import BODIES, KEYS, LEDGER_PLANES, QUERIES, QUERY_KEYS
from schemas.model import Body, Message, Query
from schemas.results import Accepted, Refusal, Result, Verdict, build
from schemas.roles import (
    FACT_PLANES,
    QUERY_ABOUT,
    QUERY_ROLES,
    VERB_ROLES,
    About,
    Role,
    may_speak,
)
from schemas.strict_json import JsonObject


def built(verdict: Verdict) -> JsonObject:
    return build(verdict, command_id="c" * 22, result_id="0-7", at_ms=5)


def test_an_accepted_result_has_no_error() -> None:
    body = built(Accepted("minted", {"token": "t"}))
    assert body == {
        "v": 1,
        "command_id": "c" * 22,
        "id": "0-7",
        "at_ms": 5,
        "status": "ok",
        "outcome": "minted",
        "data": {"token": "t"},
    }
    parsed = Result.parse(strict_json.dumps(body))
    assert parsed.error is None
    assert parsed.to_object() == body


@pytest.mark.parametrize("code", list(Code))
def test_a_refused_result_says_why_and_whether_to_try_again(code: Code) -> None:
    body = built(Refusal(code, "some-reason", "A sentence.", data={"a": None}))
    ours = code in (Code.INTERNAL, Code.UNAVAILABLE)
    assert body == {
        "v": 1,
        "command_id": "c" * 22,
        "id": "0-7",
        "at_ms": 5,
        "status": "failed" if ours else "refused",
        "outcome": "some-reason",
        "data": {"a": None},
        "error": {
            "code": code.value,
            "reason": "some-reason",
            "message": "A sentence.",
            "retryable": code is Code.UNAVAILABLE,
        },
    }
    parsed = Result.parse(strict_json.dumps(body))
    assert parsed.error is not None
    assert parsed.to_object() == body


def test_the_result_of_bad_input_names_the_field() -> None:
    bad = BadInput("holder.id", "bad-token", "field holder.id does not match its grammar")
    body = built(Refusal.of(bad))
    assert body["error"]["field"] == "holder.id"
    assert body["error"]["code"] == "bad-request"
    assert body["outcome"] == "bad-token"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"v": 2}, "v"),
        ({"status": "fine"}, "status"),
        ({"at_ms": 1.5}, "at_ms"),
        ({"data": []}, "data"),
        ({"more": 1}, "more"),
        ({"error": {"code": "conflict"}}, "error.reason"),
    ],
)
def test_a_client_reads_results_as_strictly_as_a_worker_reads_commands(
    change: dict[str, Any], field: str
) -> None:
    body = built(Accepted("minted")) | change
    with pytest.raises(BadInput) as caught:
        Result.parse(strict_json.dumps(body))
    assert caught.value.field == field


def test_codes_are_the_closed_set_of_the_contract() -> None:
    assert [code.value for code in Code] == [
        "bad-request",
        "unsupported-version",
        "unauthenticated",
        "permission-denied",
        "not-found",
        "already-exists",
        "conflict",
        "failed-precondition",
        "deadline-exceeded",
        "expired",
        "cancelled",
        "fenced",
        "unavailable",
        "resource-exhausted",
        "internal",
    ]
    assert frozenset({Code.UNAVAILABLE}) == RETRYABLE


def test_every_verb_has_a_body_a_key_and_a_role() -> None:
    assert BODIES.keys() == KEYS.keys() == VERB_ROLES.keys()
    assert QUERIES.keys() <= QUERY_ROLES.keys()
    assert all(allowed for allowed in (*VERB_ROLES.values(), *QUERY_ROLES.values()))
    assert {plane for plane, _ in BODIES} == {"cp", *LEDGER_PLANES}
    for (plane, verb), body in BODIES.items():
        assert plane == body.PLANE
        assert verb == body.VERB


def subclasses(of: type[Any]) -> set[type[Any]]:
    """Every subclass that the contract defines."""
    direct = of.__subclasses__()
    every = set(direct).union(*map(subclasses, direct))
    return {one for one in every if one.__module__.startswith("schemas.")}


def test_no_body_and_no_query_is_missing_from_the_tables() -> None:
    assert subclasses(Body) - set(BODIES.values()) == {commands.adm.Fenced}
    assert subclasses(Query) == {*QUERIES.values()}


def test_it_is_said_about_whom_every_query_may_be() -> None:
    """What is somebody's own is asked by a subject that names it, or judged by who asks."""
    assert QUERY_ABOUT.keys() == QUERY_ROLES.keys()
    for pair, fields in QUERY_KEYS.items():
        assert QUERY_ABOUT[pair] is About.SUBJECT
        assert all(QUERIES[pair].model_fields[field].is_required() for field in fields)
    for pair, roles in QUERY_ROLES.items():
        if Role.DELEGATE in roles and pair != ("sys", "status"):
            assert QUERY_ABOUT[pair] is About.SUBJECT
        if pair[0] == "cap" and pair not in QUERY_KEYS:
            assert roles <= {Role.OPERATOR, Role.OBSERVER}


def test_every_role_has_something_to_do_and_something_it_may_not() -> None:
    for role in Role:
        can = {verb for verb, allowed in VERB_ROLES.items() if role in allowed}
        assert bool(can) is (role is not Role.OBSERVER)
        assert can < VERB_ROLES.keys()
    assert not any(Role.OBSERVER in allowed for allowed in VERB_ROLES.values())
    assert FACT_PLANES.keys() == set(Role) - {Role.WORKER}


RESERVED = {
    "_worker": Role.WORKER,
    "_worker-7f": Role.WORKER,
    "_witness": Role.WITNESS,
    "_witness-host1": Role.WITNESS,
    "_op": Role.OPERATOR,
    "_op-carol": Role.OPERATOR,
}


@pytest.mark.parametrize("principal", RESERVED)
def test_a_reserved_name_speaks_in_its_own_role_only(principal: str) -> None:
    for (plane, verb), allowed in VERB_ROLES.items():
        assert may_speak(principal, plane, verb) is (RESERVED[principal] in allowed)


@pytest.mark.parametrize("principal", ["_", "__op", "_Op", "_admin", "_wit", "_work"])
def test_other_reserved_names_say_nothing(principal: str) -> None:
    assert not any(may_speak(principal, plane, verb) for plane, verb in VERB_ROLES)


@pytest.mark.parametrize("principal", ["alice", "op", "worker", "a_op", "-op", "x_worker"])
def test_a_plain_name_never_speaks_for_the_platform_or_an_operator(principal: str) -> None:
    for (plane, verb), allowed in VERB_ROLES.items():
        plain = allowed - {Role.WORKER, Role.WITNESS, Role.OPERATOR}
        assert may_speak(principal, plane, verb) is bool(plain)
    assert not any(
        may_speak(principal, "sys", verb) for plane, verb in VERB_ROLES if plane == "sys"
    )
    for operator_only in ("resolve", "cooldown", "policy", "drain"):
        assert not may_speak(principal, "adm", operator_only)
    assert not may_speak(principal, "cap", "minting")
    assert not may_speak(principal, "cap", "import")


EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "command.cp.mint": [
        {"v": 1, "deadline_at_ms": 1},
        {
            "v": 1,
            "deadline_at_ms": 1,
            "holder": {"id": "a", "lifecycleUid": "a1" * 13},
            "prompt": {"v": 1, "title": "t", "choices": ["y"]},
        },
    ],
    "command.cp.heartbeat": [{"v": 1, "generation": 1, "deadline_at_ms": 1}],
    "command.cp.resume": [{"v": 1}, {"v": 1, "answer": {"a": [None]}}],
    "command.cp.expire": [{"v": 1}],
    "command.adm.complete": [{"v": 1, "lease_id": "l", "generation": 1, "outcome": "completed"}],
    "command.cap.reserve": [{"v": 1, "latest_expires_at_ms": 1, "cap": 1}],
    "command.sys.tick": [{"v": 1}],
    "query.cp.list": [{}, {"v": 1, "limit": 5}],
    "result": [built(Accepted("minted")), built(Refusal(Code.CONFLICT, "r", "m"))],
    "record.cp.status": [
        {"state": "waiting", "deadlineGeneration": 1, "deadline": 1, "observedSpecRevision": 1}
    ],
    "fact.cp.settle": [{"v": 1, "token": "t", "settle": "expired", "generation": 1, "ts": 1}],
}


@pytest.mark.parametrize("name", CATALOG)
def test_a_printed_schema_is_a_json_schema(name: str) -> None:
    schema = CATALOG[name].schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    assert schema["title"] == name
    assert schema["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema
    assert schema.get("description")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_printed_schema_takes_what_we_take_and_no_more(name: str) -> None:
    entry = CATALOG[name]
    schema = entry.schema()
    check = jsonschema.Draft202012Validator(schema)
    for example in EXAMPLES[name]:
        assert check.is_valid(example)
        entry.model.model_validate(example)
        assert not check.is_valid(example | {"unknown": 1})
        for field, value in example.items():
            if type(value) is int:
                assert not check.is_valid(example | {field: str(value)})
            if field in schema.get("required", ()):
                assert not check.is_valid({k: v for k, v in example.items() if k != field})


def test_the_catalog_holds_every_command_and_query() -> None:
    assert {f"command.{plane}.{verb}" for plane, verb in BODIES} <= CATALOG.keys()
    assert {f"query.{plane}.{name}" for plane, name in QUERIES} <= CATALOG.keys()


def test_tidegate_schema_prints_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker.cli.main", "schema"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    printed = json.loads(done.stdout)["messages"]
    assert printed == {name: entry.schema() for name, entry in CATALOG.items()}


def test_the_contract_imports_nothing_of_ours() -> None:
    code = "import schemas.catalog, schemas.roles, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    loaded = done.stdout.split()
    assert "schemas.roles" in loaded
    assert not [name for name in loaded if name == "worker" or name.startswith("worker.")]


def test_messages_are_frozen() -> None:
    tick = commands.sys.Tick.from_object({"v": 1})
    with pytest.raises(ValueError, match="frozen"):
        tick.v = 2  # type: ignore[misc]  # that it is refused is the point
    assert all(
        model.model_config["frozen"] and model.model_config["extra"] == "forbid"
        for model in subclasses(Message)
    )


def test_headers_and_limits_are_those_of_the_contract() -> None:
    assert headers.COMMAND == "Tidegate-Command"
    assert headers.CAUSE == "Tidegate-Cause"
    assert limits.MAX_BODY_BYTES == 65_536
    assert limits.MAX_DEPTH == 64
    assert limits.MAX_SUBJECT_BYTES == 1_024
    assert limits.MAX_SAFE_INTEGER == 9_007_199_254_740_991
    assert inspect.getdoc(results.Error) is not None


OWNER: JsonObject = {"principal": "alice", "uid": "a" * 26}
WORDS: dict[tuple[str, str], tuple[JsonObject, str, str]] = {
    ("sys", "liveness"): (
        {"v": 1, "owner": OWNER, "state": "banana", "seen_at_ms": 1},
        "state",
        "'silent' or 'alive'",
    ),
    ("adm", "enqueue"): (
        {
            "v": 1,
            "session_id": "s",
            "agent_id": "a",
            "fingerprint": "f",
            "provider": "p",
            "model": "m",
            "grant": 7,
        },
        "grant",
        "'push' or 'pull'",
    ),
    ("adm", "complete"): (
        {"v": 1, "lease_id": "1-1-1", "generation": 1, "outcome": None},
        "outcome",
        "'completed', 'failed' or 'cancelled'",
    ),
}


@pytest.mark.parametrize("verb", WORDS)
def test_the_words_of_a_refusal_are_not_the_librarys(
    verb: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, field, words = WORDS[verb]
    refused = model._refusal

    def disturbed(of: Any, error: Any) -> BadInput:
        theirs: Any = {"msg": "theirs", "ctx": {"expected": "theirs"}}
        return refused(of, error | theirs)

    monkeypatch.setattr(model, "_refusal", disturbed)
    with pytest.raises(BadInput) as bad:
        BODIES[verb].from_object(body)
    assert bad.value.message == f"field {field} must be one of {words}"
