"""The bytes of every record and message of the checkpoint plane, as they are published.

Written out by hand: a change that moves a single byte of the wire must show here. Clients and
owners that know nothing of this code base are built against these.
"""

import pytest

from schemas import records, strict_json, subjects, views
from schemas.codes import BadInput, Code
from schemas.commands import cp
from schemas.model import Closed
from schemas.names import Names, kv_stream
from schemas.records import Goal, GoalCaller, Holder, Obligation, Signer
from schemas.results import Accepted, Refusal, build
from schemas.subjects import Checkpoint, Speaker, Timer
from worker.bus.plan import TopologySettings, durable_configs, stream_configs
from worker.checkpoints.settle import expired, fact_of, observer_fact, resumed
from worker.queries import answer_object
from worker.timers.writer import rfc3339

HOLDER = Holder(id="alice", lifecycleUid="0123456789abcdefghijklmnop")
WAITING = records.StatusRecord(
    state="waiting", deadlineGeneration=1, deadline=1_790_000_000_000, observedSpecRevision=1
)
RESUMED = resumed(
    WAITING, 1, 1_789_999_999_000, HOLDER, "d-ldOnonPcAE5T7XlDPzNxJzL6G34M4z8fHRHWZ2scE"
)
EXPIRED = expired(WAITING, 1_790_000_000_002)
TARGET = Checkpoint("acme.runs", "t-1")

RECORDS: list[tuple[Closed, bytes]] = [
    (
        records.SpecRecord(
            v=1,
            token="t-1",
            holder=HOLDER,
            mintedAt=1_700_000_000_000,
            initialDeadline=1_790_000_000_000,
        ),
        b'{"v":1,"token":"t-1",'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"mintedAt":1700000000000,"initialDeadline":1790000000000}',
    ),
    (
        records.SpecRecord(
            v=1,
            token="t-1",
            goal=Goal(caller=GoalCaller(owner="o", actor="a", uid="u"), goalId="g-1"),
            obligations=[
                Obligation(
                    v=1,
                    space="main",
                    requestId="r-1",
                    signer=Signer(keyId="k"),
                    attenuations=[{"max": 5}, None],
                    iat=1,
                    exp=2,
                    sig="s",
                )
            ],
            holder=HOLDER,
            mintedAt=1,
            initialDeadline=2,
        ),
        b'{"v":1,"token":"t-1",'
        b'"goal":{"caller":{"owner":"o","actor":"a","uid":"u"},"goalId":"g-1"},'
        b'"obligations":[{"v":1,"space":"main","requestId":"r-1","signer":{"keyId":"k"},'
        b'"attenuations":[{"max":5},null],"iat":1,"exp":2,"sig":"s"}],'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"mintedAt":1,"initialDeadline":2}',
    ),
    (
        WAITING,
        b'{"state":"waiting","deadlineGeneration":1,"deadline":1790000000000,'
        b'"observedSpecRevision":1}',
    ),
    (
        RESUMED,
        b'{"state":"resumed","deadlineGeneration":1,"deadline":1790000000000,'
        b'"observedSpecRevision":1,"settledGeneration":1,'
        b'"settledHolder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"settledAnswerId":"d-ldOnonPcAE5T7XlDPzNxJzL6G34M4z8fHRHWZ2scE",'
        b'"settledTs":1789999999000}',
    ),
    (
        resumed(WAITING, 1, 5, HOLDER, None),
        b'{"state":"resumed","deadlineGeneration":1,"deadline":1790000000000,'
        b'"observedSpecRevision":1,"settledGeneration":1,'
        b'"settledHolder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"settledTs":5}',
    ),
    (
        EXPIRED,
        b'{"state":"expired","deadlineGeneration":1,"deadline":1790000000000,'
        b'"observedSpecRevision":1,"settledGeneration":1,"settledTs":1790000000002}',
    ),
    (
        fact_of(TARGET, RESUMED),
        b'{"v":1,"token":"t-1","settle":"resumed","generation":1,'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"answerId":"d-ldOnonPcAE5T7XlDPzNxJzL6G34M4z8fHRHWZ2scE","ts":1789999999000}',
    ),
    (
        fact_of(TARGET, EXPIRED),
        b'{"v":1,"token":"t-1","settle":"expired","generation":1,"ts":1790000000002}',
    ),
    (
        records.TimerBody(v=1, timerId="t-1", generation=1, deadline=1_790_000_000_000),
        b'{"v":1,"timerId":"t-1","generation":1,"deadline":1790000000000}',
    ),
    (
        records.PromptRecord(
            v=1,
            title="Deploy “1.4.2”?",
            body="**Risk**: low\n",
            choices=["yes", "no"],
            answer_schema={"type": "string"},
            requested_by="deployer",
        ),
        '{"v":1,"title":"Deploy “1.4.2”?","body":"**Risk**: low\\n","choices":["yes","no"],'
        '"answer_schema":{"type":"string"},"requested_by":"deployer"}'.encode(),
    ),
    (
        records.AnswerRecord(
            v=1,
            token="t-1",
            answerId="d-ldOnonPcAE5T7XlDPzNxJzL6G34M4z8fHRHWZ2scE",
            value="approve",
            by="alice",
            at=7,
        ),
        b'{"v":1,"token":"t-1","answerId":"d-ldOnonPcAE5T7XlDPzNxJzL6G34M4z8fHRHWZ2scE",'
        b'"value":"approve","by":"alice","at":7}',
    ),
    (
        records.AnswerRecord(
            v=1, token="t-1", answerId="a", value=None, artifact="sha256:00ff", by="alice", at=7
        ),
        b'{"v":1,"token":"t-1","answerId":"a","artifact":"sha256:00ff","by":"alice","at":7}',
    ),
    (
        views.CheckpointFact(v=1, generation=1, deadline_at_ms=9, holder=HOLDER, at_ms=8),
        b'{"v":1,"generation":1,"deadline_at_ms":9,'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},"at_ms":8}',
    ),
    (
        observer_fact(RESUMED, HOLDER),
        b'{"v":1,"generation":1,"deadline_at_ms":1790000000000,'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"at_ms":1789999999000}',
    ),
    (
        observer_fact(EXPIRED, HOLDER),
        b'{"v":1,"generation":1,"deadline_at_ms":1790000000000,'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"at_ms":1790000000002,"lateness_ms":2}',
    ),
    (
        views.RepairedFact(v=1, generation=2, repairs=["rearmed"], at_ms=8),
        b'{"v":1,"generation":2,"repairs":["rearmed"],"at_ms":8}',
    ),
    (
        cp.Mint(v=1, deadline_at_ms=9),
        b'{"v":1,"deadline_at_ms":9}',
    ),
    (
        cp.Mint(
            v=1,
            deadline_at_ms=9,
            holder=cp.MintHolder(id="alice", lifecycleUid="0123456789abcdefghijklmnop"),
            prompt=records.PromptRecord(v=1, title="t"),
        ),
        b'{"v":1,"deadline_at_ms":9,'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"},'
        b'"prompt":{"v":1,"title":"t"}}',
    ),
    (
        cp.Heartbeat(v=1, generation=1, deadline_at_ms=9),
        b'{"v":1,"generation":1,"deadline_at_ms":9}',
    ),
    (
        cp.Resume(v=1, answer={"ok": True}, artifact="sha256:00ff", prompt_digest="0" * 64),
        b'{"v":1,"answer":{"ok":true},"artifact":"sha256:00ff","prompt_digest":"'
        + b"0" * 64
        + b'"}',
    ),
    (cp.Expire(v=1), b'{"v":1}'),
    (cp.Repair(v=1), b'{"v":1}'),
]


@pytest.mark.parametrize(("message", "golden"), RECORDS)
def test_a_message_is_these_bytes(message: Closed, golden: bytes) -> None:
    assert message.to_bytes() == golden
    assert type(message).from_bytes(golden) == message


VIEW = views.CheckpointView(
    endpoint="acme.runs",
    token="t-1",
    state="waiting",
    generation=1,
    deadline_at_ms=9,
    holder=HOLDER,
)


def test_a_result_is_these_bytes() -> None:
    body = build(Accepted("minted", VIEW.to_object()), command_id="c" * 22, result_id="17", at_ms=8)
    assert strict_json.dumps(body) == (
        b'{"v":1,"command_id":"cccccccccccccccccccccc","id":"17","at_ms":8,"status":"ok",'
        b'"outcome":"minted","data":{"endpoint":"acme.runs","token":"t-1","state":"waiting",'
        b'"generation":1,"deadline_at_ms":9,'
        b'"holder":{"id":"alice","lifecycleUid":"0123456789abcdefghijklmnop"}}}'
    )


def test_a_refused_result_is_these_bytes() -> None:
    verdict = Refusal(Code.PERMISSION_DENIED, "not-the-holder", "only the holder may")
    body = build(verdict, command_id="c" * 22, result_id="17", at_ms=8)
    assert strict_json.dumps(body) == (
        b'{"v":1,"command_id":"cccccccccccccccccccccc","id":"17","at_ms":8,"status":"refused",'
        b'"outcome":"not-the-holder","data":{},"error":{"code":"permission-denied",'
        b'"reason":"not-the-holder","message":"only the holder may","retryable":false}}'
    )


def test_the_result_of_bad_input_is_these_bytes() -> None:
    with pytest.raises(BadInput) as caught:
        cp.Mint.from_bytes(b'{"v":1,"deadline_at_ms":1.0}')
    body = build(Refusal.of(caught.value), command_id="c" * 22, result_id="17", at_ms=8)
    assert strict_json.dumps(body) == (
        b'{"v":1,"command_id":"cccccccccccccccccccccc","id":"17","at_ms":8,"status":"refused",'
        b'"outcome":"wrong-type","data":{},"error":{"code":"bad-request","reason":"wrong-type",'
        b'"message":"field deadline_at_ms must be a whole number","retryable":false,'
        b'"field":"deadline_at_ms"}}'
    )


def test_a_querys_answer_is_these_bytes() -> None:
    assert strict_json.dumps(answer_object(Accepted("listed", {"items": []}))) == (
        b'{"v":1,"status":"ok","outcome":"listed","data":{"items":[]}}'
    )
    assert strict_json.dumps(answer_object(Refusal(Code.NOT_FOUND, "r", "m"))) == (
        b'{"v":1,"status":"refused","outcome":"r","data":{},"error":{"code":"not-found",'
        b'"reason":"r","message":"m","retryable":false}}'
    )


NAMES = Names("tidegate", "main")
SPEAKER = Speaker("alice", "0123456789abcdefghijklmnop")
OWNER = Timer("acme.runs", "zyxwvutsrqponmlkjihgfedcba", "7", "t-1", "armed")


@pytest.mark.parametrize(
    ("subject", "golden"),
    [
        (
            subjects.checkpoint_command(NAMES, SPEAKER, "mint", TARGET),
            "tidegate.main.cmd.alice.0123456789abcdefghijklmnop.cp.mint.acme_runs.t-1",
        ),
        (
            subjects.command(NAMES, SPEAKER, "cap", "reserve", "user-1", "k" * 16),
            "tidegate.main.cmd.alice.0123456789abcdefghijklmnop.cap.reserve.user-1.kkkkkkkkkkkkkkkk",
        ),
        (
            subjects.result(NAMES, SPEAKER, "cp", "mint", "17"),
            "tidegate.main.res.alice.0123456789abcdefghijklmnop.cp.mint.17",
        ),
        (
            subjects.result(NAMES, SPEAKER, "adm", "enqueue", "0-17"),
            "tidegate.main.res.alice.0123456789abcdefghijklmnop.adm.enqueue.0-17",
        ),
        (
            subjects.grant(NAMES, SPEAKER, "r-1", 2),
            "tidegate.main.grant.alice.0123456789abcdefghijklmnop.r-1.2",
        ),
        (
            subjects.checkpoint_fact(NAMES, "expired", TARGET, 2),
            "tidegate.main.fact.cp.expired.acme_runs.t-1.2",
        ),
        (
            subjects.ledger_fact(NAMES, "adm", "lease_lost", ("r-1", "2"), "0-17-1"),
            "tidegate.main.fact.adm.lease_lost.r-1.2.0-17-1",
        ),
        (
            subjects.query(NAMES, SPEAKER, "cp", "show"),
            "tidegate.main.qry.alice.0123456789abcdefghijklmnop.cp.show",
        ),
        (
            subjects.heartbeat(NAMES, SPEAKER),
            "tidegate.main.hb.alice.0123456789abcdefghijklmnop",
        ),
        (subjects.settle_fact(NAMES, TARGET), "tidegate.main.epf.acme_runs.cp.t-1"),
        *(
            (
                subjects.timer(NAMES, OWNER, kind),
                f"tidegate.main.ept.acme_runs.zyxwvutsrqponmlkjihgfedcba.7.t-1.{kind}",
            )
            for kind in ("schedule", "armed", "fire", "cancel")
        ),
        (
            subjects.timer(NAMES, subjects.own_timer(NAMES, TARGET), "armed"),
            "tidegate.main.ept.acme_runs.viu5drslqzsg7sknuuhr3itl4m.0.t-1.armed",
        ),
        (subjects.spec_key(TARGET), "cp.acme_runs.t-1.spec"),
        (subjects.status_key(TARGET), "cp.acme_runs.t-1.status"),
        (subjects.prompt_key(TARGET), "prompt.acme_runs.t-1"),
        (subjects.answer_key(TARGET, "a-1"), "answer.acme_runs.t-1.a-1"),
    ],
)
def test_a_subject_or_key_is_this_text(subject: str, golden: str) -> None:
    assert subject == golden


def test_an_instant_is_written_for_the_scheduler_in_utc_with_three_decimals() -> None:
    assert rfc3339(1_790_000_000_000) == "2026-09-21T14:13:20.000Z"
    assert rfc3339(1_790_000_000_007) == "2026-09-21T14:13:20.007Z"
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"


COTAL = Names("cotal", "main")


def test_with_root_cotal_streams_and_bucket_are_a_cotal_spaces() -> None:
    configs = {c["name"]: c for c in stream_configs(COTAL, TopologySettings(), "id")}
    assert COTAL.records_bucket == "cotal_records_main"
    assert COTAL.ept_req_stream == "EPT_REQ_main"
    assert configs["EPT_REQ_main"]["subjects"] == ["cotal.main.ept.*.*.*.*.schedule"]
    assert configs["EPT_REQ_main"]["max_age"] == 24 * 3600 * 10**9
    assert not configs["EPT_REQ_main"].get("allow_msg_schedules")
    timers = configs["EPT_main"]
    # The third is our own: Cotal withdraws no timer, and asks for no subject of that name.
    assert timers["subjects"] == [
        "cotal.main.ept.*.*.*.*.armed",
        "cotal.main.ept.*.*.*.*.fire",
        "cotal.main.ept.*.*.*.*.cancel",
    ]
    assert timers["allow_msg_schedules"] is True
    facts = configs["EPF_main"]
    assert facts["subjects"] == ["cotal.main.epf.>"]
    assert facts["allow_direct"] is True
    assert facts.get("max_age", 0) == 0
    records_stream = configs[kv_stream("cotal_records_main")]
    wanted = {
        "name": "KV_cotal_records_main",
        "subjects": ["$KV.cotal_records_main.>"],
        "allow_direct": True,
        "allow_rollup_hdrs": False,
        "deny_delete": True,
        "deny_purge": True,
        "max_msgs_per_subject": 1,
        "storage": "file",
        "retention": "limits",
        "max_msgs": -1,
        "max_bytes": -1,
    }
    assert {name: records_stream.get(name) for name in wanted} == wanted
    assert records_stream.get("max_age", 0) == 0
    assert not records_stream.keys() & {"mirror", "sources"}


def test_our_durables_never_meet_cotals() -> None:
    ours = durable_configs(COTAL, ack_wait_ms=30_000)
    assert ours.keys() == {"cp_main", "timers_main", "fires_main"}
    assert "timerw_main" not in ours


@pytest.mark.parametrize(
    ("subject", "golden"),
    [
        *(
            (
                subjects.timer(COTAL, OWNER, kind),
                f"cotal.main.ept.acme_runs.zyxwvutsrqponmlkjihgfedcba.7.t-1.{kind}",
            )
            for kind in ("schedule", "armed", "fire")
        ),
        (subjects.settle_fact(COTAL, TARGET), "cotal.main.epf.acme_runs.cp.t-1"),
    ],
)
def test_with_root_cotal_a_subject_is_cotals(subject: str, golden: str) -> None:
    assert subject == golden


@pytest.mark.parametrize(
    "raw",
    [
        b'{"v":1,"timerId":"t-1","generation":1,"deadline":253402300799999}',
        b'{"deadline":0,"generation":9007199254740991,"timerId":"t-1","v":1}',
    ],
)
def test_a_timer_body_of_any_owner_is_read(raw: bytes) -> None:
    assert records.TimerBody.from_bytes(raw).timerId == "t-1"
