"""The guards of admission, of recovery by evidence and of sealed prompts."""

from typing import Final

from tests.nemesis.removals.guard import Edit, Guard

LEDGER: Final = (
    "tests/integration/test_ledger_fold.py::test_commands_of_all_kinds_get_one_result_each"
)
ADM: Final = "tests/unit/test_admission_capacity.py::test_starts_count_until_active_or_doubt"
CAP: Final = "tests/unit/test_caps_facts.py::test_a_reservation_and_its_confirmation_are_facts"
EVIDENCE: Final = "tests/unit/test_evidence_liveness.py::test_the_next_beat_makes_alive"
_CAPACITY: Final = "tests/unit/test_admission_capacity.py"
_STATES: Final = "tests/unit/test_admission_states.py"
_RECOVERY: Final = "tests/unit/test_admission_recovery.py"
_QUEUE: Final = "tests/unit/test_admission_queue.py"
_LIVENESS: Final = "tests/unit/test_evidence_liveness.py"
_PAYLOADS: Final = "tests/integration/test_evidence_payloads.py"

GUARDS: Final[tuple[Guard, ...]] = (
    Guard(
        "lease-fence",
        "a verb counts under another lease's id",
        (
            Edit(
                "worker/admission/turns.py",
                "        or turn.lease_id != lease_id\n",
                "",
            ),
        ),
        (f"{_STATES}::test_one_wrong_part_of_the_fence_is_fenced_in_every_verb_and_state",),
        ADM,
    ),
    Guard(
        "lease-generation",
        "a verb counts under another generation",
        (
            Edit(
                "worker/admission/turns.py",
                "        or turn.generation != generation\n",
                "",
            ),
        ),
        (f"{_STATES}::test_one_wrong_part_of_the_fence_is_fenced_in_every_verb_and_state",),
        ADM,
    ),
    Guard(
        "lease-owner",
        "a verb counts from somebody else than the lease's owner",
        (
            Edit(
                "worker/admission/turns.py",
                "        or turn.owner_principal != owner.principal\n"
                "        or turn.owner_uid != owner.uid\n",
                "",
            ),
        ),
        (f"{_STATES}::test_one_wrong_part_of_the_fence_is_fenced_in_every_verb_and_state",),
        ADM,
    ),
    Guard(
        "states",
        "a verb moves a turn from whatever state",
        (
            Edit(
                "worker/admission/leases.py",
                "    if turn.state not in SOURCES[verb] and turn.state != also:\n",
                "    if False:\n",
            ),
            Edit(
                "worker/admission/journal.py",
                "    if (kind, source, target) not in TRIPLES:\n",
                "    if False:\n",
            ),
        ),
        (f"{_STATES}::test_a_fenced_verb_moves_a_turn_only_as_the_table_says",),
        ADM,
    ),
    Guard(
        "one-dispatch",
        "a turn past its intent goes back to the queue when its start times out",
        (
            Edit(
                "worker/admission/leases.py",
                '    "UPDATE adm_leases SET start_deadline_at_ms = NULL, connector = ?, child',
                '    "UPDATE adm_leases SET connector = ?, child',
            ),
            Edit(
                "worker/admission/turns.py",
                "    if turn.state not in BEFORE_INTENT:\n"
                '        raise ValueError(f"a turn in {turn.state} may have been dispatched")\n',
                "",
            ),
            Edit(
                "worker/admission/journal.py",
                "    if (kind, source, target) not in TRIPLES:\n",
                "    if False:\n",
            ),
        ),
        (f"{_RECOVERY}::test_after_an_intent_there_is_no_start_timeout",),
        ADM,
    ),
    Guard(
        "one-dispatch-proof",
        "a turn past its intent runs again when its processes are proven gone",
        (
            Edit(
                "worker/admission/recovery.py",
                '        turns.free_debt(tx, turn, "proven-gone")\n',
                "        _run_again(tx, turn)\n",
            ),
        ),
        (f"{_RECOVERY}::test_only_proof_of_connector_child_and_group_frees_the_seat",),
        ADM,
    ),
    Guard(
        "seat-limit",
        "seats are given beyond the limit",
        (
            Edit(
                "worker/admission/limits.py",
                "        if self.seats >= self.seat_limit:\n",
                "        if False:\n",
            ),
            Edit(
                "worker/admission/selection.py",
                "queued > 0 AND seats < seat_limit\nAND starts",
                "queued > 0\nAND starts",
            ),
        ),
        (
            f"{_CAPACITY}::test_seats_over_the_limit_are_never_given",
            f"{_CAPACITY}::test_a_seat_is_held_from_admission_to_the_end_debt_included",
        ),
        ADM,
    ),
    Guard(
        "start-limit",
        "more turns start at once than the policy allows",
        (
            Edit(
                "worker/admission/limits.py",
                "        if self.starts >= self.max_concurrent_starts:\n",
                "        if False:\n",
            ),
            Edit(
                "worker/admission/selection.py",
                "AND starts < max_concurrent_starts AND coalesce(",
                "AND coalesce(",
            ),
        ),
        (
            f"{_CAPACITY}::test_a_slow_start_does_not_hold_up_its_neighbour",
            f"{_CAPACITY}::test_none_says_what_blocks",
        ),
        CAP,
    ),
    Guard(
        "pacing",
        "turns start closer together than the policy allows",
        (
            Edit(
                "worker/admission/limits.py",
                "        if self.opens_at_ms > now_ms:\n",
                "        if False:\n",
            ),
            Edit(
                "worker/admission/selection.py",
                "coalesce(paced_at_ms + min_start_interval_ms, 0) <= ?)",
                "? > 0)",
            ),
        ),
        (f"{_CAPACITY}::test_pacing_blocks_until_the_interval_is_over",),
        ADM,
    ),
    Guard(
        "cooldown",
        "a model that rests gets turns",
        (
            Edit(
                "worker/admission/selection.py",
                "        elif cooling:\n            heads.park(db, model, heads.MODEL)\n",
                "",
            ),
        ),
        ("tests/unit/test_admission_choice.py::test_a_cooling_model_blocks_only_itself",),
        ADM,
    ),
    Guard(
        "silent-owner",
        "a silent owner's turn gets a seat",
        (
            Edit(
                "worker/admission/selection.py",
                "        elif silent:\n            heads.park(db, owner, heads.OWNER)\n",
                "",
            ),
        ),
        (
            "tests/unit/test_admission_choice.py::test_a_silent_owners_turn_is_skipped_and_not_cancelled",
        ),
        ADM,
    ),
    Guard(
        "queue-deadline",
        "a turn is admitted after its queue deadline",
        (
            Edit(
                "worker/admission/selection.py",
                "        if turn.deadline_at_ms <= now_ms:\n            turns.time_out(tx, turn)\n"
                "        elif cooling:\n",
                "        if cooling:\n",
            ),
            Edit(
                "worker/admission/passing.py",
                "    if deadlines is not None and deadlines <= now_ms:\n        _end_waiting(tx)\n",
                "",
            ),
            Edit(
                "worker/admission/passing.py",
                "    if turn.state == QUEUED and turn.deadline_at_ms <= tx.now_ms:\n",
                "    if False:\n",
            ),
        ),
        (
            f"{_QUEUE}::test_a_queue_deadline_equal_to_now_has_passed",
            f"{_QUEUE}::test_whoever_comes_before_the_deadline_wins_and_nobody_after",
        ),
        ADM,
    ),
    Guard(
        "request-id-once",
        "a request id is used again after its turn was pruned",
        (
            Edit(
                "worker/admission/requests.py",
                "    if tx.db.execute(_USED, (request_id,)).fetchone():\n",
                "    if False:\n",
            ),
        ),
        (f"{_QUEUE}::test_a_request_id_is_never_used_twice_not_even_after_pruning",),
        ADM,
    ),
    Guard(
        "evidence-fence",
        "evidence about an earlier lease counts for the present one",
        (
            Edit(
                "worker/admission/recovery.py",
                "        if not _is_fence_of(turn, body.fence):\n            return FENCED\n",
                "",
            ),
        ),
        (f"{_RECOVERY}::test_evidence_under_a_stale_fence_is_fenced",),
        ADM,
    ),
    Guard(
        "evidence-process",
        "evidence about another process counts",
        (
            Edit(
                "worker/admission/recovery.py",
                "    if not _is_same(json.loads(known_as), body.connector):\n",
                "    if False:\n",
            ),
        ),
        (f"{_RECOVERY}::test_evidence_of_another_host_or_process_changes_nothing",),
        ADM,
    ),
    Guard(
        "evidence-host",
        "a witness speaks for another host than its own",
        (
            Edit(
                "worker/admission/recovery.py",
                "    if not is_worker and speaker.principal != witness_of(body.host):\n",
                "    if False:\n",
            ),
        ),
        (
            f"{_RECOVERY}::test_a_hosts_witness_has_a_name_of_its_own",
            f"{_RECOVERY}::test_evidence_of_another_host_or_process_changes_nothing",
        ),
        ADM,
    ),
    Guard(
        "evidence-group",
        "a seat is freed although the child's group may live on",
        (
            Edit(
                "worker/admission/recovery.py",
                '        body.child_state == "gone" and body.group_state == "empty" '
                "and has_own_group(turn)\n",
                '        body.child_state == "gone" and has_own_group(turn)\n',
            ),
        ),
        (f"{_RECOVERY}::test_anything_less_is_a_debt_that_keeps_its_seat",),
        ADM,
    ),
    Guard(
        "evidence-own-group",
        "a child without a group of its own gives evidence of one",
        (
            Edit(
                "worker/admission/recovery.py",
                '        body.child_state == "gone" and body.group_state == "empty" '
                "and has_own_group(turn)\n",
                '        body.child_state == "gone" and body.group_state == "empty"\n',
            ),
        ),
        (f"{_RECOVERY}::test_a_child_without_a_group_of_its_own_gives_no_group_evidence",),
        ADM,
    ),
    Guard(
        "pid-reused",
        "a process that got the id of another one is taken for it",
        (
            Edit(
                "worker/evidence/verdicts.py",
                "            stat.pid == identity.pid\n"
                "            and stat.start_ticks - self.here.shift_ticks "
                "== identity.start_ticks\n",
                "            stat.pid == identity.pid\n",
            ),
        ),
        ("tests/unit/test_evidence_verdicts.py::test_one_process",),
        EVIDENCE,
    ),
    Guard(
        "another-namespace",
        "an observer judges processes of a namespace that it does not see",
        (
            Edit(
                "worker/evidence/verdicts.py",
                "        if identity.pid_ns != self.here.pid_ns:\n"
                '            return Sight("unverifiable", "other-namespace")\n',
                "",
            ),
        ),
        ("tests/unit/test_evidence_verdicts.py::test_one_process",),
        EVIDENCE,
    ),
    Guard(
        "deaf-never-heard",
        "a worker that never heard itself calls owners silent",
        (
            Edit(
                "worker/evidence/liveness.py",
                "        if self._since_ms is None or self._until_ms is None:\n"
                "            return False\n"
                "        return self._until_ms - max(heard_ms, self._since_ms)",
                "        return self._looked_ms - max(heard_ms, self._since_ms or 0)",
            ),
        ),
        (f"{_LIVENESS}::test_an_observer_that_never_heard_itself_suspects_nobody",),
        EVIDENCE,
    ),
    Guard(
        "deaf-stall",
        "a worker that stood still counts the time it did not hear",
        (
            Edit(
                "worker/evidence/liveness.py",
                "        if now_ms - self._looked_ms > self._stall_ms:\n"
                "            self.disturbed(now_ms)\n",
                "",
            ),
        ),
        (f"{_LIVENESS}::test_a_stalled_observer_begins_anew",),
        EVIDENCE,
    ),
    Guard(
        "deaf-gap",
        "own beats far apart prove what lies between them",
        (
            Edit(
                "worker/evidence/liveness.py",
                "        if self._until_ms is None or sent_ms - self._until_ms > "
                "self._own_gap_ms:\n",
                "        if self._until_ms is None:\n",
            ),
        ),
        (f"{_LIVENESS}::test_own_beats_too_far_apart_prove_nothing_between_them",),
        EVIDENCE,
    ),
    Guard(
        "deaf-reconnect",
        "own beats sent before a reconnect prove that we hear after it",
        (
            Edit(
                "worker/evidence/liveness.py",
                "        if sent_ms < self._not_before_ms:\n            return\n",
                "",
            ),
        ),
        (f"{_LIVENESS}::test_after_a_reconnect_own_beats_sent_before_it_count_no_more",),
        EVIDENCE,
    ),
    Guard(
        "deaf-reconnect-noticed",
        "a reconnect does not end the time in which we are known to hear",
        (
            Edit(
                "worker/evidence/heartbeats.py",
                "            self._own_beats.clear()\n            self.watch.disturbed(now_ms)\n",
                "",
            ),
        ),
        (
            "tests/integration/test_evidence_heartbeats.py::test_a_worker_that_reconnects_suspects_nobody",
        ),
        "tests/integration/test_evidence_heartbeats.py::test_an_owner_that_stops_beating_is_reported_and_so_is_its_next_beat",
    ),
    Guard(
        "deaf-forged",
        "beats that others sent in our name prove that we hear",
        (
            Edit(
                "worker/evidence/heartbeats.py",
                "            if (sent_ms := self._own_beats.get(msg.data)) is not None:\n"
                "                self._hear_own(msg.data, sent_ms)\n"
                "            return\n",
                "            self.watch.own_beat(self._monotonic_ms())\n            return\n",
            ),
        ),
        (
            "tests/integration/test_evidence_heartbeats.py::test_a_worker_whose_own_beats_are_forged_proves_nothing_by_them",
        ),
        "tests/integration/test_evidence_heartbeats.py::test_an_owner_that_stops_beating_is_reported_and_so_is_its_next_beat",
    ),
    Guard(
        "sealed-payload-fence",
        "a sealed prompt is handed to whoever asks for it",
        (
            Edit(
                "worker/admission/queries.py",
                "    if turn is None or turns.fenced(turn, body.lease_id, body.generation, "
                "view.speaker):\n",
                "    if turn is None:\n",
            ),
        ),
        (
            "tests/unit/test_admission_queries.py::test_only_the_leases_owner_reads_the_prompt_and_only_before_active",
            f"{_PAYLOADS}::test_only_the_leases_owner_reads_it_and_only_under_its_fence",
        ),
        ADM,
    ),
    Guard(
        "sealed-payload-state",
        "a sealed prompt is handed out after its turn went to the provider",
        (
            Edit(
                "worker/admission/queries.py",
                "    if turn.state not in _PAYLOAD_STATES:\n"
                "        return turns.wrong_state(turn)\n",
                "",
            ),
        ),
        (
            "tests/unit/test_admission_queries.py::test_only_the_leases_owner_reads_the_prompt_and_only_before_active",
            f"{_PAYLOADS}::test_dispatch_destroys_exactly_what_was_enqueued",
        ),
        ADM,
    ),
    Guard(
        "sealed-payload-revision",
        "destroying a prompt destroys a later one of the same turn",
        (
            Edit(
                "worker/ledger/deletions.py",
                ", expect_last_subject_seq=row.expect",
                "",
            ),
        ),
        (f"{_PAYLOADS}::test_a_later_revision_under_the_same_key_is_not_destroyed",),
        LEDGER,
    ),
)
