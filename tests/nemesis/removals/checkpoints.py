"""The guards of checkpoints, their timers and the clock."""

from typing import Final

from tests.nemesis.removals.guard import Edit, Guard

CP: Final = (
    "tests/integration/test_cp_resume.py::test_the_holder_resumes_and_the_timer_is_cancelled"
)
_RACES: Final = "tests/integration/test_cp_races.py"
_TIMERS: Final = "tests/integration/test_cp_timers.py"
_FIRES: Final = "tests/integration/test_cp_fires.py"
_RESUME: Final = "tests/integration/test_cp_resume.py"
_HEARTBEAT: Final = "tests/integration/test_cp_heartbeat.py"
_RESULTS: Final = "tests/integration/test_cp_results.py"
_MINT: Final = "tests/integration/test_cp_mint.py"
_GUARD: Final = "tests/integration/test_cp_guard.py"
_SWEEP: Final = "tests/integration/test_cp_sweep.py"

GUARDS: Final[tuple[Guard, ...]] = (
    Guard(
        "arm-fence",
        "a timer is armed whatever has moved it meanwhile",
        (
            Edit(
                "worker/timers/writer.py",
                "            expect_last_subject_seq=expected,\n",
                "            expect_last_subject_seq=None,\n",
            ),
        ),
        (f"{_TIMERS}::test_a_held_writer_loses_to_whoever_moved_the_timer_meanwhile",),
        CP,
    ),
    Guard(
        "arm-fence-order",
        "the timer's sequence is read after the proof instead of before it",
        (
            Edit(
                "worker/timers/writer.py",
                "                armed = await self._publish(owner, body, known_seq)\n",
                "                known_seq = await self.armed_seq(owner)\n"
                "                armed = await self._publish(owner, body, known_seq)\n",
            ),
        ),
        (f"{_TIMERS}::test_the_sequence_is_read_before_the_proof",),
        CP,
    ),
    Guard(
        "arm-proof",
        "a timer is armed without asking the leader for the status",
        (
            Edit(
                "worker/timers/writer.py",
                "                word = _contradiction("
                "await self._bounded(self._prove(target)), body)\n",
                "                word = None\n",
            ),
        ),
        (f"{_TIMERS}::test_what_the_leader_contradicts_is_discarded",),
        CP,
    ),
    Guard(
        "arm-second-look",
        "after arming the status is not looked at again",
        (
            Edit(
                "worker/timers/writer.py",
                "        word = _contradiction(proof, body)\n        if word is None:\n",
                "        word = _contradiction(proof, body)\n        if True:\n",
            ),
        ),
        (
            f"{_TIMERS}::test_a_timer_armed_for_what_then_settled_is_cancelled",
            f"{_TIMERS}::test_a_writer_held_over_a_settlement_arms_nothing",
        ),
        CP,
    ),
    Guard(
        "cancel-fence",
        "a cancel removes whatever timer stands",
        (
            Edit(
                "worker/timers/writer.py",
                "                expect_last_subject_seq=armed_seq,\n"
                "                expect_subject=armed,\n",
                "",
            ),
        ),
        (f"{_TIMERS}::test_cancelling_removes_only_the_timer_that_was_meant",),
        CP,
    ),
    Guard(
        "request-headers",
        "a foreign owner's request may carry headers of the scheduler",
        (
            Edit(
                "worker/timers/requests.py",
                "            if name.lower().startswith(h.REFUSED_ON_REQUESTS):\n",
                "            if False:\n",
            ),
        ),
        (f"{_TIMERS}::test_a_request_with_a_scheduler_header_is_refused",),
        CP,
    ),
    Guard(
        "fire-origin",
        "a fired message counts whoever scheduled it",
        (
            Edit(
                "worker/timers/fires.py",
                '        ) != subjects.timer(self._names, timer, "armed"):\n'
                '            return "forged", 0\n',
                '        ) != subjects.timer(self._names, timer, "armed"):\n            pass\n',
            ),
        ),
        (f"{_FIRES}::test_a_forged_fire_settles_nothing",),
        CP,
    ),
    Guard(
        "fire-generation",
        "a fire of another generation counts",
        (
            Edit(
                "worker/timers/fires.py",
                "        if proof.generation != body.generation:\n            if",
                "        if False:\n            if",
            ),
            Edit(
                "worker/checkpoints/plane.py",
                "        if record.deadlineGeneration != generation or now_ms < record.deadline:\n",
                "        if now_ms < record.deadline:\n",
            ),
        ),
        (f"{_FIRES}::test_a_fire_of_another_generation_is_stale",),
        CP,
    ),
    Guard(
        "fire-lost-timer",
        "a timer that the broker lost as it fired the one before is not armed anew",
        (
            Edit(
                "worker/timers/fires.py",
                "        if await self._writer.armed_seq(timer) == 0:\n",
                "        if await self._writer.armed_seq(timer) < 0:\n",
            ),
        ),
        (f"{_FIRES}::test_a_timer_that_went_with_the_one_before_is_armed_anew",),
        CP,
    ),
    Guard(
        "fire-deadline",
        "a fire settles before the deadline",
        (
            Edit(
                "worker/timers/fires.py",
                '        if wait_ms > 0:\n            return "early", int(wait_ms) + 1\n',
                "",
            ),
            Edit(
                "worker/checkpoints/plane.py",
                "        if record.deadlineGeneration != generation or now_ms < record.deadline:\n",
                "        if record.deadlineGeneration != generation:\n",
            ),
        ),
        (f"{_FIRES}::test_an_early_fire_waits_and_settles_at_the_deadline",),
        CP,
    ),
    Guard(
        "status-compare-and-set",
        "a status is written over whatever stands there",
        (
            Edit(
                "worker/bus/kv.py",
                "            expect_last_subject_seq=revision,\n            still=still,\n",
                "            expect_last_subject_seq=None if revision else 0,\n"
                "            still=still,\n",
            ),
        ),
        (
            f"{_RACES}::test_two_decisions_at_once_leave_one_and_both_are_told_it",
            f"{_RACES}::test_resume_against_heartbeat",
        ),
        CP,
    ),
    Guard(
        "resume-deadline",
        "a resume is not compared with the deadline",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "            if ctx.now_ms(self._clock) >= it.status.record.deadline:\n",
                "            if False:\n",
            ),
            Edit(
                "worker/checkpoints/verbs.py",
                "            now_ms = ctx.now_ms(self._clock)\n"
                "            if now_ms >= it.status.record.deadline:\n",
                "            now_ms = ctx.now_ms(self._clock)\n            if False:\n",
            ),
            Edit(
                "worker/checkpoints/verbs.py",
                "        if spec.record.holder != speaker or "
                "ctx.now_ms(self._clock) >= deadline:\n",
                "        if spec.record.holder != speaker:\n",
            ),
            Edit(
                "worker/checkpoints/verbs.py",
                "        if now_ms >= deadline:\n            return None\n",
                "",
            ),
        ),
        (
            f"{_RESUME}::test_a_late_resume_drives_the_expiry_and_is_told_so",
            f"{_RESUME}::test_an_approval_that_waits_past_the_deadline_for_a_worker_is_expired",
        ),
        CP,
    ),
    Guard(
        "settle-deadline",
        "the deadline is not compared again once the answer was filed",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "            now_ms = ctx.now_ms(self._clock)\n"
                "            if now_ms >= it.status.record.deadline:\n",
                "            now_ms = ctx.now_ms(self._clock)\n            if False:\n",
            ),
        ),
        (f"{_RESUME}::test_an_answer_that_takes_until_after_the_deadline_to_file_settles_nothing",),
        CP,
    ),
    Guard(
        "settle-deadline-remembered",
        "nor is it for a checkpoint that the worker minted itself",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "        if now_ms >= deadline:\n            return None\n",
                "",
            ),
        ),
        (f"{_RESUME}::test_an_answer_that_takes_until_after_the_deadline_to_file_settles_nothing",),
        CP,
    ),
    Guard(
        "heartbeat-deadline",
        "a heartbeat moves a deadline that has passed",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "        now_ms = ctx.now_ms(self._clock)\n"
                "        if now_ms >= it.status.record.deadline:\n",
                "        now_ms = ctx.now_ms(self._clock)\n        if False:\n",
            ),
        ),
        (f"{_HEARTBEAT}::test_a_heartbeat_on_a_due_checkpoint_expires_it",),
        CP,
    ),
    Guard(
        "heartbeat-generation",
        "a heartbeat of another generation moves the deadline",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "        if it.status.record.deadlineGeneration != body.generation:\n",
                "        if False:\n",
            ),
        ),
        (f"{_HEARTBEAT}::test_another_generation_than_the_one_in_force_conflicts",),
        CP,
    ),
    Guard(
        "expire-deadline",
        "an expire command settles what is not due",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "            if self._clock.lower_ms() < record.deadline and "
                "ctx.at_ms < record.deadline:\n",
                "            if False:\n",
            ),
            Edit(
                "worker/checkpoints/verbs.py",
                "            await self._wait_until_due(record.deadline)\n",
                "",
            ),
        ),
        ("tests/integration/test_cp_settle.py::test_a_checkpoint_that_is_not_due_is_not_expired",),
        CP,
    ),
    Guard(
        "holder",
        "anybody resumes a checkpoint that was looked up",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "        if it.spec.record.holder != speaker:\n",
                "        if False:\n",
            ),
        ),
        (f"{_RESUME}::test_another_holder_is_denied_before_anything_else",),
        CP,
    ),
    Guard(
        "holder-remembered",
        "anybody resumes a checkpoint that the worker minted itself",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "        if spec.record.holder != speaker or "
                "ctx.now_ms(self._clock) >= deadline:\n",
                "        if ctx.now_ms(self._clock) >= deadline:\n",
            ),
        ),
        (f"{_RESUME}::test_another_holder_is_denied_before_anything_else",),
        CP,
    ),
    Guard(
        "fact-check",
        "a status that reads waiting is believed although its settle fact exists",
        (
            Edit(
                "worker/checkpoints/looking.py",
                '    if it.fact is None or it.status.record.state != "waiting":\n',
                "    if True:\n",
            ),
        ),
        (f"{_SWEEP}::test_a_status_behind_its_fact_is_refused_repaired_and_said_so",),
        CP,
    ),
    Guard(
        "fact-check-mint",
        "a token is minted although its settle fact exists",
        (
            Edit(
                "worker/checkpoints/minting.py",
                "            if created is not None and fact is None:\n",
                "            if created is not None:\n",
            ),
        ),
        (f"{_GUARD}::test_a_token_that_settled_stays_settled_when_all_records_are_lost",),
        CP,
    ),
    Guard(
        "fact-check-fire",
        "a fire expires what its settle fact says was resumed",
        (
            Edit(
                "worker/checkpoints/plane.py",
                "        if it.fact is not None:\n",
                "        if False:\n",
            ),
        ),
        (f"{_FIRES}::test_a_fire_of_a_regressed_status_restores_it_instead",),
        CP,
    ),
    Guard(
        "fact-once",
        "a settle fact that contradicts the one that stands is taken for it",
        (
            Edit(
                "worker/checkpoints/records.py",
                "            if await self.fact(target) != fact:\n",
                "            if False:\n",
            ),
        ),
        (f"{_SWEEP}::test_a_fact_that_contradicts_the_status_is_internal_and_nobody_acts",),
        CP,
    ),
    Guard(
        "fact-create-only",
        "a settle fact is written over the one that stands",
        (
            Edit(
                "worker/checkpoints/records.py",
                "                expect_last_subject_seq=0,\n            )\n"
                "        except CasLost:\n            if await self.fact(target) != fact:\n",
                "            )\n"
                "        except CasLost:\n            if await self.fact(target) != fact:\n",
            ),
        ),
        (
            f"{_SWEEP}::test_a_fact_that_contradicts_the_status_is_internal_and_nobody_acts",
            f"{_RESULTS}::test_every_command_delivered_again_changes_nothing",
        ),
        CP,
    ),
    Guard(
        "token-once",
        "a deleted record's token is minted anew",
        (
            Edit(
                "worker/checkpoints/records.py",
                "            (subjects.spec_key(target), spec.to_bytes(), headers, 0),\n"
                "            (subjects.status_key(target), status.to_bytes(), headers, 0),\n"
                "        ]\n",
                "            (key, record.to_bytes(), headers, await self._end_of(key))\n"
                "            for key, record in (\n"
                "                (subjects.spec_key(target), spec),\n"
                "                (subjects.status_key(target), status),\n"
                "            )\n"
                "        ]\n",
            ),
            Edit(
                "worker/checkpoints/records.py",
                "    async def put_fact(\n",
                "    async def _end_of(self, key: str) -> int:\n"
                "        entry = await self._bucket.read(key)\n"
                "        return entry.revision if entry is not None and entry.deleted else 0\n\n"
                "    async def put_fact(\n",
            ),
        ),
        (f"{_MINT}::test_a_deletion_marker_is_never_absence_and_closes_the_token",),
        CP,
    ),
    Guard(
        "mint-terms",
        "a second mint with other terms is taken for the first",
        (
            Edit(
                "worker/checkpoints/minting.py",
                "        if not wanted.same_as(it.spec.record, prompt):\n",
                "        if False:\n",
            ),
        ),
        (
            f"{_MINT}::test_the_same_mint_again_changes_no_record",
            f"{_MINT}::test_a_mint_that_differs_in_any_field_conflicts",
        ),
        CP,
    ),
    Guard(
        "own-write",
        "a worker does not recognise its own settlement by its cause",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                '        own = it.status.record.state == "resumed" and '
                "it.status.cause == ctx.cause\n",
                "        own = False\n",
            ),
        ),
        (f"{_RESUME}::test_a_resume_sent_again_recognises_its_own_settlement",),
        CP,
    ),
    Guard(
        "result-once",
        "a command that comes again is served without looking for its result",
        (
            Edit(
                "worker/checkpoints/commands.py",
                "            if not first or self._may_have_been_served(delivery):\n",
                "            if False:\n",
            ),
        ),
        (
            f"{_RESULTS}::test_a_command_delivered_again_reads_its_result_first",
            f"{_RESULTS}::test_a_refused_command_has_no_effect_when_its_delivery_is_repeated_as_the_first",
        ),
        CP,
    ),
    Guard(
        "result-create-only",
        "a result is written over the one that stands",
        (
            Edit(
                "worker/checkpoints/commands.py",
                "            await self._res.publish(subject, body, headers=headers, "
                "expect_last_subject_seq=0)\n",
                "            await self._res.publish(subject, body, headers=headers)\n",
            ),
        ),
        (f"{_RESULTS}::test_two_replicas_that_serve_the_same_delivery_answer_once",),
        CP,
    ),
    Guard(
        "facts-of-observers-once",
        "observers hear a fact as often as it is touched",
        (
            Edit(
                "worker/checkpoints/settle.py",
                "        if again and await self._js.last_message("
                "self._names.res_stream, subject) is not None:\n            return\n",
                "",
            ),
        ),
        (f"{_RESULTS}::test_observers_hear_each_fact_once_however_often_it_is_touched",),
        CP,
    ),
    Guard(
        "prompt-digest",
        "an approval counts for another prompt than the one that was seen",
        (
            Edit(
                "worker/checkpoints/verbs.py",
                "            prompt is None or prompt_digest(prompt) != body.prompt_digest\n",
                "            False\n",
            ),
        ),
        (f"{_RESUME}::test_a_prompt_digest_approves_only_the_stored_prompt",),
        CP,
    ),
    Guard(
        "role-checkpoints",
        "any principal uses any verb of checkpoints",
        (
            Edit(
                "worker/checkpoints/commands.py",
                '    if not may_speak(command.speaker.principal, "cp", command.verb):\n',
                "    if False:\n",
            ),
        ),
        (
            f"{_MINT}::test_reserved_principals_may_not_mint",
            "tests/integration/test_cp_settle.py::test_an_operator_may_expire_and_repair_and_nothing_else",
        ),
        CP,
    ),
    Guard(
        "clock-upper-bound",
        "a resume is judged by the least that now can be",
        (
            Edit(
                "worker/checkpoints/context.py",
                "        return max(int(clock.upper_ms()) + 1, self.at_ms)\n",
                "        return max(int(clock.lower_ms()) + 1, self.at_ms)\n",
            ),
        ),
        (f"{_FIRES}::test_resume_and_heartbeat_are_judged_by_the_upper_bound_of_now",),
        CP,
    ),
    Guard(
        "clock-command-time",
        "a resume stored after the deadline is judged by the clock alone",
        (
            Edit(
                "worker/checkpoints/context.py",
                "        return max(int(clock.upper_ms()) + 1, self.at_ms)\n",
                "        return int(clock.upper_ms()) + 1\n",
            ),
        ),
        (
            f"{_FIRES}::test_a_resume_sequenced_after_the_deadline_never_wins_however_late_the_clock",
        ),
        CP,
    ),
    Guard(
        "clock-lower-bound",
        "an expiry is judged by the most that now can be",
        (
            Edit(
                "worker/bus/clock.py",
                "        return self._bounds()[0]\n",
                "        return self._bounds()[1]\n",
            ),
        ),
        (
            "tests/integration/test_bus_clock.py::test_the_bounds_hold_the_brokers_own_timestamps",
            "tests/integration/test_bus_clock.py::test_refreshing_narrows_the_bounds_and_time_widens_them",
        ),
        CP,
    ),
    Guard(
        "clock-round-trip",
        "the broker's answer is taken for its time when it is heard",
        (
            Edit(
                "worker/bus/clock.py",
                "Bounds(heard_s, told_ms, told_ms + (heard_s - sent_s) * 1000)",
                "Bounds(heard_s, told_ms, told_ms)",
            ),
        ),
        (
            "tests/integration/test_bus_clock.py::test_the_bounds_hold_the_brokers_own_timestamps",
            "tests/integration/test_bus_clock.py::test_refreshing_narrows_the_bounds_and_time_widens_them",
        ),
        CP,
    ),
    Guard(
        "clock-uncertainty",
        "decisions are made however badly the broker's time is known",
        (
            Edit(
                "worker/bus/clock.py",
                "if self._believed is None or high_ms - low_ms > LIMIT_MS:\n",
                "if self._believed is None:\n",
            ),
        ),
        (
            "tests/integration/test_bus_clock.py::test_a_broker_that_does_not_answer_leaves_the_bounds_drifting",
            f"{_FIRES}::test_nothing_is_decided_while_the_clock_is_uncertain",
        ),
        CP,
    ),
    Guard(
        "look-before-acting",
        "commands are served before the streams were looked at after a reconnect",
        (
            Edit(
                "worker/checkpoints/plane.py",
                "            if self._may_act():\n                await handle(delivery)\n",
                "            if True:\n                await handle(delivery)\n",
            ),
        ),
        (
            f"{_GUARD}::test_nothing_is_served_between_a_reconnect_and_the_look_at_the_streams",
            f"{_GUARD}::test_nothing_is_served_until_the_journal_has_been_applied",
        ),
        CP,
    ),
    Guard(
        "regression-by-sequence",
        "streams that end before where they had come are believed",
        (
            Edit(
                "worker/checkpoints/guard.py",
                "(before.created != seen.created or seen.last < before.last)",
                "before.created != seen.created",
            ),
        ),
        (f"{_GUARD}::test_a_store_replaced_by_an_older_copy_undoes_no_settlement",),
        CP,
    ),
    Guard(
        "regression-by-birth",
        "a stream made anew is believed if it is full enough",
        (
            Edit(
                "worker/checkpoints/guard.py",
                "(before.created != seen.created or seen.last < before.last)",
                "seen.last < before.last",
            ),
        ),
        (f"{_GUARD}::test_a_recreated_stream_is_known_by_its_birth_however_full_it_is_again",),
        CP,
    ),
)
