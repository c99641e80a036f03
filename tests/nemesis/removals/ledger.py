"""The guards of the ledger: its fold, what it says, its log and its snapshots."""

from typing import Final

from tests.nemesis.removals.guard import Edit, Guard

FOLD: Final = (
    "tests/unit/test_ledger_fold.py::test_a_command_gets_one_result_with_id_time_and_chain"
)
LEDGER: Final = (
    "tests/integration/test_ledger_fold.py::test_commands_of_all_kinds_get_one_result_each"
)
_FOLDED: Final = "tests/unit/test_ledger_fold.py"
_REPEATS: Final = "tests/unit/test_admission_repeats.py"
_REPEATED: Final = Edit(
    "worker/ledger/fold.py",
    "                if tx.ruleset < rulesets.MENDED or not _permits(command, known.verdict):\n"
    "                    return known.verdict\n",
    "                return known.verdict\n",
)
_REPLICAS: Final = "tests/integration/test_ledger_replicas.py"
_REGRESSION: Final = "tests/integration/test_ledger_regression.py"
_SNAPSHOTS: Final = "tests/integration/test_ledger_snapshots.py"
_STATES: Final = "tests/unit/test_admission_states.py"

GUARDS: Final[tuple[Guard, ...]] = (
    Guard(
        "gap-check",
        "the fold takes a message that is not the next one",
        (
            Edit(
                "worker/ledger/fold.py",
                "        if seq != state.watermark + 1:\n"
                "            raise LogGap(state.watermark + 1, seq)\n",
                "",
            ),
        ),
        (f"{_FOLDED}::test_a_gap_is_not_folded",),
        FOLD,
    ),
    Guard(
        "gap-check-reader",
        "the reader hands on what is not the next sequence",
        (
            Edit(
                "worker/bus/reader.py",
                "        if seq != self.expected:\n"
                '            raise self._gap(f"{seq} came instead of {self.expected}", seq)\n',
                "        return\n",
            ),
        ),
        (
            "tests/integration/test_bus_reader.py::test_a_hole_in_the_log_is_a_gap",
            "tests/integration/test_bus_reader.py::test_a_log_trimmed_above_the_start_is_a_gap",
        ),
        LEDGER,
    ),
    Guard(
        "watermark",
        "the watermark is not written with its batch",
        (
            Edit(
                "worker/ledger/fold.py",
                "        self._db.execute(\n            _SAVE,\n            (\n"
                "                state.epoch,\n                state.watermark,\n",
                "        kept = self._db.execute(_LOAD).fetchone()[1]\n"
                "        self._db.execute(\n            _SAVE,\n            (\n"
                "                state.epoch,\n                kept,\n",
            ),
        ),
        (
            f"{_FOLDED}::test_outbox_rows_are_committed_with_their_command_and_dropped_when_said",
            f"{_FOLDED}::test_digest_notices_one_changed_value",
            "tests/integration/test_ledger_fold.py::test_it_goes_on_where_it_stopped",
        ),
        FOLD,
    ),
    Guard(
        "watermark-same-transaction",
        "the watermark is written in a transaction after that of its batch",
        (
            Edit(
                "worker/ledger/fold.py",
                "        state = self.state\n        self._db.execute(\n            _SAVE,\n",
                "        self._commit()\n"
                '        self._db.execute("BEGIN IMMEDIATE")\n'
                "        state = self.state\n        self._db.execute(\n            _SAVE,\n",
            ),
        ),
        (
            "tests/integration/test_ledger_kill.py::test_killed_at_each_point[before-commit]",
            f"{_FOLDED}::test_a_commit_that_fails_leaves_the_fold_where_the_file_is",
        ),
        FOLD,
    ),
    Guard(
        "outbox-with-its-command",
        "what a command says is not committed with it",
        (
            Edit(
                "worker/ledger/fold.py",
                "        if self._outbox.rows:\n            self._db.executemany("
                "_PUT_OUT, self._outbox.rows)\n",
                "",
            ),
        ),
        (f"{_FOLDED}::test_outbox_rows_are_committed_with_their_command_and_dropped_when_said",),
        FOLD,
    ),
    Guard(
        "commit-before-publish",
        "what a batch says is handed to the publisher before its commit",
        (
            Edit(
                "worker/ledger/fold.py",
                "            self._write()\n            self._commit()\n"
                "        rows = tuple(self._outbox.rows)\n",
                "            self._write()\n"
                "            self.tell(tuple(self._outbox.rows), self.state.watermark)\n"
                "            self._commit()\n"
                "        rows = tuple(self._outbox.rows)\n",
            ),
            Edit(
                "worker/ledger/fold.py",
                "        self._ticked = False\n        self._seq = 0\n"
                "        self.state = self._load()\n",
                "        self._ticked = False\n        self._seq = 0\n"
                "        self.tell = lambda rows, watermark: None\n"
                "        self.state = self._load()\n",
            ),
            Edit(
                "worker/ledger/runner.py",
                "        def work() -> tuple[Batch, Position]:\n",
                "        loop = asyncio.get_running_loop()\n"
                "        database.fold.tell = lambda rows, watermark: "
                "loop.call_soon_threadsafe(\n"
                "            self._publisher.offer, rows, watermark\n        )\n\n"
                "        def work() -> tuple[Batch, Position]:\n",
            ),
            Edit(
                "worker/ledger/runner.py",
                "        self._publisher.offer(batch.rows, batch.watermark)\n",
                "",
            ),
        ),
        (
            "tests/integration/test_ledger_disk.py::test_a_full_disk_stops_the_fold_and_space_brings_it_back",
        ),
        LEDGER,
    ),
    Guard(
        "results-create-only",
        "a result is stored over the one that stands",
        (
            Edit(
                "worker/ledger/publisher.py",
                "                    expect_last_subject_seq=expected,\n",
                "",
            ),
            Edit(
                "worker/ledger/publisher.py",
                "                row.headers,\n                0,\n            )\n",
                "                row.headers,\n                None,\n            )\n",
            ),
        ),
        (
            "tests/integration/test_ledger_kill.py::test_killed_at_each_point[in-outbox]",
            f"{_REPLICAS}::test_two_that_both_publish_do_no_harm",
        ),
        LEDGER,
    ),
    Guard(
        "chain",
        "a result's chain value does not cover the results before it",
        (
            Edit(
                "worker/ledger/fold.py",
                "            state.chain = chained(state.chain, plain)\n",
                '            state.chain = chained("0" * 64, plain)\n',
            ),
        ),
        (f"{_FOLDED}::test_chain_covers_every_earlier_result",),
        FOLD,
    ),
    Guard(
        "divergence-by-bytes",
        "a result that is stored with other bytes is taken for ours",
        (
            Edit(
                "worker/ledger/publisher.py",
                "        if found.data == message.data:\n",
                "        if True:\n",
            ),
        ),
        (f"{_REPLICAS}::test_a_replica_changed_by_hand_is_caught_and_every_replica_stops",),
        LEDGER,
    ),
    Guard(
        "divergence-by-lease",
        "the publisher's chain value is not compared with ours",
        (
            Edit(
                "worker/ledger/publisher.py",
                "chain_of(row.body) != told.chain",
                "False",
            ),
        ),
        (f"{_REPLICAS}::test_a_replica_changed_by_hand_is_caught_and_every_replica_stops",),
        LEDGER,
    ),
    Guard(
        "publisher-lease",
        "a replica publishes although another one holds the lease",
        (
            Edit(
                "worker/ledger/lease.py",
                "        if take and not self.other_alive:\n",
                "        if take:\n",
            ),
        ),
        (f"{_REPLICAS}::test_a_replica_leaves_the_lease_to_the_one_that_renews_it",),
        LEDGER,
    ),
    Guard(
        "savepoint-per-command",
        "bad input found late leaves behind what its command wrote",
        (
            Edit(
                "worker/ledger/fold.py",
                '            run("ROLLBACK TO command")\n            run("RELEASE command")\n'
                "            raise\n",
                '            run("RELEASE command")\n            raise\n',
            ),
        ),
        (f"{_FOLDED}::test_a_bad_key_found_late_leaves_nothing_behind",),
        FOLD,
    ),
    Guard(
        "whole-batch",
        "a batch that broke is committed as far as it came",
        (
            Edit(
                "worker/ledger/fold.py",
                "            if db.in_transaction:\n                db.rollback()\n",
                "            if db.in_transaction:\n                db.commit()\n",
            ),
        ),
        (f"{_FOLDED}::test_a_defect_rolls_the_whole_batch_back",),
        FOLD,
    ),
    Guard(
        "id-memory",
        "the same command again is carried out again",
        (
            Edit(
                "worker/ledger/fold.py",
                "        known = self._memory.find(key, tx.now_ms) if given else None\n",
                "        known = None\n",
            ),
            Edit(
                "worker/ledger/memory.py",
                '_INSERT = "INSERT INTO commands VALUES (?, ?, ?, ?, ?)"\n',
                '_INSERT = "INSERT OR IGNORE INTO commands VALUES (?, ?, ?, ?, ?)"\n',
            ),
        ),
        (
            f"{_FOLDED}::test_the_same_command_again_gets_its_outcome_under_its_own_sequence",
            f"{_STATES}::test_every_verb_repeated_with_its_command_id_is_carried_out_once",
        ),
        FOLD,
    ),
    Guard(
        "id-reused",
        "another command under a used id gets the first one's verdict",
        (
            Edit(
                "worker/ledger/fold.py",
                "            if known.digest not in (digest, written):\n"
                "                return _REUSED\n",
                "",
            ),
        ),
        (f"{_FOLDED}::test_another_command_under_the_same_id_is_a_conflict",),
        FOLD,
    ),
    Guard(
        "authorize-anew",
        "a repeated authorization is answered from memory",
        (
            Edit(
                "worker/ledger/fold.py",
                "            if not anew:\n",
                "            if known.verdict:\n",
            ),
            _REPEATED,
            Edit(
                "worker/ledger/fold.py",
                'key, digest, b"" if anew else tail)\n',
                "key, digest, tail)\n",
            ),
        ),
        (f"{_FOLDED}::test_authorize_is_never_answered_from_memory",),
        FOLD,
    ),
    Guard(
        "licence-anew",
        "an `ok` that permits something is repeated from memory",
        (_REPEATED,),
        (f"{_REPEATS}::test_a_licence_ends_with_its_seat",),
        FOLD,
    ),
    Guard(
        "role-ledger",
        "any principal uses any verb of the ledger",
        (
            Edit(
                "worker/ledger/fold.py",
                "    if not roles.may_speak(principal, plane, verb):\n",
                "    if False:\n",
            ),
        ),
        (f"{_FOLDED}::test_roles_are_checked_before_the_transition",),
        FOLD,
    ),
    Guard(
        "log-time",
        "log time goes back with a command's timestamp",
        (
            Edit(
                "worker/ledger/fold.py",
                "        now_ms = max(state.now_ms, stamp_ms)\n",
                "        now_ms = message.time_ms\n",
            ),
        ),
        (f"{_FOLDED}::test_time_never_goes_back",),
        FOLD,
    ),
    Guard(
        "command-from-the-future",
        "a command stamped far ahead of this machine's clock is folded",
        (
            Edit(
                "worker/ledger/runner.py",
                "        limit_ms = self._wall_ms() + AHEAD_MS\n",
                "        limit_ms = 1 << 62\n",
            ),
        ),
        ("tests/integration/test_ledger_fold.py::test_a_command_from_the_future_is_waited_for",),
        LEDGER,
    ),
    Guard(
        "unknown-ruleset",
        "a ruleset that this version does not know is taken into force",
        (
            Edit(
                "worker/ledger/system.py",
                "        if body.version not in self._rulesets:\n"
                '            return Stop("unknown-ruleset", tx.seq, body)\n',
                "",
            ),
        ),
        (f"{_FOLDED}::test_an_unknown_ruleset_stops_the_fold_before_its_command",),
        FOLD,
    ),
    Guard(
        "too-old-to-be-said",
        "a rebuild says again what nobody can hear any more",
        (
            Edit(
                "worker/ledger/fold.py",
                "                self._outbox.muted = message.time_ms < say_from_ms\n",
                "                self._outbox.muted = False\n",
            ),
        ),
        (f"{_FOLDED}::test_commands_nobody_can_hear_any_more_say_nothing",),
        FOLD,
    ),
    Guard(
        "log-birth",
        "a log made anew is folded on",
        (
            Edit(
                "worker/ledger/regression.py",
                "    if notes.created and notes.created != info.created:\n",
                "    if False:\n",
            ),
        ),
        (f"{_REGRESSION}::test_a_log_that_differs_from_what_was_noted_of_it_is_not_gone_on_with",),
        LEDGER,
    ),
    Guard(
        "log-fingerprints",
        "an older copy of the log that has grown again is folded on",
        (
            Edit(
                "worker/ledger/regression.py",
                "        if not await _matches(js, info.name, seq, remembered):\n"
                "            raise Regressed(",
                "        if False:\n            raise Regressed(",
            ),
            Edit(
                "worker/ledger/regression.py",
                "    if notes.created and notes.created != info.created:\n",
                "    if False:\n",
            ),
        ),
        (f"{_REGRESSION}::test_a_log_made_anew_is_noticed_even_when_it_is_longer",),
        LEDGER,
    ),
    Guard(
        "log-end",
        "a log that ends before the watermark is folded on",
        (
            Edit(
                "worker/ledger/regression.py",
                "    if info.last_seq < watermark:\n"
                '        raise Regressed(watermark, f"it ends at {info.last_seq}")\n'
                "    if info.last_seq < notes.last_seen:\n"
                '        raise Regressed(watermark, f"it ends at {info.last_seq}, '
                'and reached {notes.last_seen}")\n',
                "",
            ),
        ),
        (f"{_REGRESSION}::test_a_log_that_differs_from_what_was_noted_of_it_is_not_gone_on_with",),
        LEDGER,
    ),
    Guard(
        "behind-the-log",
        "a ledger goes on although the log begins after its watermark",
        (
            Edit(
                "worker/ledger/runner.py",
                "        if info.first_seq > self.position.watermark + 1:\n"
                "            raise BehindLog(self.position.watermark, info.first_seq)\n",
                "",
            ),
        ),
        (
            f"{_SNAPSHOTS}::test_left_behind_without_a_snapshot_is_a_refusal",
            f"{_SNAPSHOTS}::test_a_replica_left_behind_by_trimming_catches_up_from_a_snapshot",
        ),
        LEDGER,
    ),
    Guard(
        "trim-below-a-proof",
        "the log is trimmed below a snapshot that nobody has verified",
        (
            Edit(
                "worker/ledger/keeper.py",
                "            if snapshot.epoch == here.epoch and "
                "await self._snapshots.is_whole(snapshot):\n",
                "            if snapshot.epoch == here.epoch:\n",
            ),
        ),
        (
            f"{_SNAPSHOTS}::test_the_log_is_trimmed_below_a_proven_snapshot_only",
            f"{_SNAPSHOTS}::test_a_damaged_snapshot_is_skipped_for_an_older_one",
        ),
        LEDGER,
    ),
    Guard(
        "snapshot-digest",
        "a snapshot is loaded although it does not digest to what it says",
        (
            Edit(
                "worker/ledger/snapshots.py",
                "        if (found.epoch, found.watermark, found.whole) != said:\n",
                "        if False:\n",
            ),
        ),
        (f"{_SNAPSHOTS}::test_a_snapshot_that_was_changed_does_not_verify",),
        LEDGER,
    ),
)
