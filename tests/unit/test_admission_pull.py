"""A turn that is pulled has two lives: the one that queued it, and the one that runs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.adm import CONNECTOR_PROCESS, UID, UID2, Admission, Json, process
from worker.ledger.rulesets import FIRST, MENDED

PULLER_PROCESS = process(30)


@pytest.fixture
def adm(tmp_path: Path) -> Iterator[Admission]:
    admission = Admission(tmp_path)
    yield admission
    admission.close()


def pulled(adm: Admission) -> None:
    """``UID`` queues r1, ``UID2`` pulls it and holds another seat of its own."""
    adm.enqueue("r1", uid=UID, grant="pull", identity=CONNECTOR_PROCESS)
    adm.enqueue("mine", "agent-2", uid=UID2, identity=PULLER_PROCESS)
    assert adm.send("admit", "r1", uid=UID2)["outcome"] == "admitted"


def test_the_turn_is_its_enqueuers_and_the_seat_its_pullers(adm: Admission) -> None:
    pulled(adm)
    turn = adm.turn("r1")
    assert (turn["owner"]["uid"], turn["lease"]["owner"]["uid"]) == (UID, UID2)


def test_the_enqueuers_end_takes_no_seat_of_the_puller(adm: Admission) -> None:
    pulled(adm)
    adm.tick(adm.now_ms + 60_000)  # nobody started
    adm.enqueue("another", "agent-3", uid=UID2, identity=PULLER_PROCESS)
    assert (adm.state("r1"), adm.state("another")) == ("queued", "admitted")
    assert adm.evidence("r1")["outcome"] == "marked"
    assert (adm.state("another"), adm.turn("another")["generation"]) == ("admitted", 1)


def test_a_dead_pullers_turn_is_not_cancelled_while_its_enqueuer_lives(adm: Admission) -> None:
    adm.enqueue("r1", uid=UID, grant="pull", identity=CONNECTOR_PROCESS)
    adm.enqueue("mine", "agent-2", uid=UID2, identity=PULLER_PROCESS)
    assert adm.send("admit", "r1", uid=UID2)["outcome"] == "admitted"
    gone: Json = {"connector": PULLER_PROCESS, "connector_state": "gone"}
    body: Json = {**gone, "request_id": "mine", "host": "host-1", "group_state": "none"}
    lease = adm.turn("mine")["lease"]
    fence = {"request_id": "mine", **{k: lease[k] for k in ("lease_id", "generation", "owner")}}
    done = adm.send("evidence", plane="sys", by="_worker", fence=fence, observed_at_ms=0, **body)
    assert done["outcome"] == "released"
    assert adm.state("r1") == "queued"
    adm.tick(adm.now_ms + 60_000)
    assert (adm.state("r1"), adm.state("mine")) == ("queued", "cancelled")
    assert adm.send("admit", "r1", uid="c" * 26)["outcome"] == "admitted"


@pytest.mark.parametrize("ruleset", [FIRST, MENDED])
def test_a_pushed_turn_that_waits_for_its_prompt_is_no_pull_turn(
    tmp_path: Path, ruleset: int
) -> None:
    adm = Admission(tmp_path, ruleset=ruleset)
    payload: Json = {"key_version": 1, "content_fingerprint": "5" * 64, "revision": 1}
    adm.enqueue("r1", payload={**payload, "expires_at_ms": adm.now_ms + 1_800_000})
    adm.step("start", "r1")
    adm.intend("r1")
    adm.step("ambiguous", "r1")
    resolved: Json = {"resolution": "confirmed_not_dispatched", "evidence": "seen"}
    assert adm.send("resolve", "r1", by="_op", **resolved)["outcome"] == "requeued"
    blocks = adm.send("admit")["data"]["blocks"]
    assert blocks == (["empty"] if ruleset >= MENDED else ["payload"])
    adm.close()


def test_under_the_first_ruleset_the_puller_took_the_turn_over(tmp_path: Path) -> None:
    adm = Admission(tmp_path, ruleset=FIRST)
    pulled(adm)
    assert adm.turn("r1")["owner"]["uid"] == UID2
    adm.close()


@pytest.mark.parametrize("ruleset", [FIRST, MENDED])
def test_a_turn_given_back_to_a_dead_enqueuer_waits_for_adoption_and_no_longer(
    tmp_path: Path, ruleset: int
) -> None:
    adm = Admission(tmp_path, ruleset=ruleset, start_timeout_ms=100_000)
    pulled(adm)
    adm.enqueue("left", uid=UID, grant="pull", identity=CONNECTOR_PROCESS)
    assert adm.evidence("left")["outcome"] == "marked"
    adm.tick(adm.now_ms + 60_000)
    assert adm.state("left") == "cancelled"
    adm.tick(adm.now_ms + 40_000)
    assert adm.state("r1") == "queued"
    adm.tick(adm.now_ms + 60_000)
    # Under the ruleset before, whoever had pulled it owned it, and is alive.
    assert adm.state("r1") == ("cancelled" if ruleset == MENDED else "queued")
    adm.close()
