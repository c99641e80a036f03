"""Caps as their rules say, over dicts; written from the rules without a look at the transitions."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.model.log_oracle import Command, Envelope, Json, Says

WINDOW_MS = 600_000
LADDER = 300
SECOND_MS = 1_000
CODES = {
    "none-active": "failed-precondition",
    "stopped": "cancelled",
    "grant-lapsed": "expired",
    "grant-mismatch": "conflict",
    "over-cap": "failed-precondition",
}

Fact = tuple[str, str, Json]


class CapOracle(Envelope):
    """The cap plane.

    Attributes:
        caps: (user, mint key) to record.
        taken: (user, second): a second names one grant, for ever.
        pointer: User to the mint key of the grant confirmed last.
        facts: What the command at hand stated: kind, user, body.
    """

    ANEW = frozenset({("cap", "authorize")})

    def __init__(self, ruleset: int) -> None:
        super().__init__(ruleset)
        self.enabled = False
        self.permit_ms = 2_000
        self.caps: dict[tuple[str, str], Json] = {}
        self.taken: set[tuple[str, int]] = set()
        self.pointer: dict[str, str] = {}
        self.generation: dict[str, int] = {}
        self.permits_end: dict[str, int] = {}
        self.imported: Json | None = None
        self.facts: list[Fact] = []

    def begin(self, seq: int) -> None:
        self.facts = []

    def time_passes(self) -> None:
        for name in self.caps:
            self._look(name)

    def due(self) -> list[int]:
        """Windows and grants that are about to end."""
        dues = []
        for cap in self.caps.values():
            if cap["state"] == "reserved":
                dues.append(cap["reserved"] + WINDOW_MS)
            dues.append(cap["second"])
        return [due for due in dues if due >= self.now_ms]

    def judge(self, command: Command, again: Says | None) -> Says:
        said: Says = getattr(self, f"_{command.verb}")(*command.key, **command.body)
        return said

    # -- what can be seen ---------------------------------------------------------------------

    def record(self, user: str, key: str) -> Json | None:
        """A record as results and queries show it."""
        cap = self.caps.get((user, key))
        if cap is None:
            return None
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=cap["second"] + 1)
        shown = {
            "user": user,
            "mint_key": key,
            "state": cap["state"],
            "expires_at_ms": cap["second"],
            "latest_expires_at_ms": cap["asked"],
            "wire_expires_at": moment.strftime("%Y-%m-%dT%H:%M:%S.001Z"),
            "cap": cap["cap"],
            "required_version": cap["version"],
            "generation": cap["generation"],
            "reserved_at_ms": cap["reserved"],
            "confirmed_at_ms": cap["confirmed"],
            "ended_at_ms": cap["ended"],
        }
        return {name: value for name, value in shown.items() if value is not None}

    def active(self, user: str) -> Json | None:
        """The record that the pointer names, if it is active."""
        cap = self.caps.get((user, self.pointer.get(user, "")))
        return cap if cap is not None and cap["state"] == "confirmed_active" else None

    def why_not(self, user: str, now_ms: int) -> str | None:
        """Why nothing is authorised, whatever the amount."""
        cap = self.caps.get((user, self.pointer.get(user, "")))
        if cap is None:
            return "none-active"
        if cap["generation"] != self._generation(user):
            return "stopped"
        if cap["state"] != "confirmed_active":
            return "none-active"
        if cap["second"] <= now_ms:
            return "grant-lapsed"
        return None

    # -- verbs --------------------------------------------------------------------------------

    def _minting(self, *, enabled: bool, permit_ms: int | None = None) -> Says:
        self.enabled = enabled
        if permit_ms is not None:
            self.permit_ms = permit_ms
        outcome = "minting_enabled" if enabled else "minting_paused"
        return Says(outcome, data={"enabled": enabled, "permit_ms": self.permit_ms})

    def _reserve(self, user: str, key: str, *, latest_expires_at_ms: int, cap: int) -> Says:
        if not 1 <= cap <= 1_000_000_000:
            return Says("out-of-range", "bad-request")
        if not self.enabled:
            return Says("minting-paused", "failed-precondition")
        known = self.caps.get((user, key))
        wanted = latest_expires_at_ms // SECOND_MS * SECOND_MS
        if known is not None:
            self._look((user, key))
            same = known["cap"] == cap and known["asked"] // SECOND_MS * SECOND_MS == wanted
            if same and known["state"] != "legacy":
                return Says("already_reserved", data=self.record(user, key) or {})
            return Says("different-reservation", "conflict", self.record(user, key) or {})
        for step in range(LADDER):
            second = wanted - step * SECOND_MS
            if second <= self.now_ms:
                break
            if (user, second) not in self.taken:
                self.taken.add((user, second))
                self.caps[user, key] = {
                    "state": "reserved",
                    "second": second,
                    "asked": latest_expires_at_ms,
                    "cap": cap,
                    "version": 2,
                    "generation": self._generation(user),
                    "reserved": self.now_ms,
                    "confirmed": None,
                    "ended": None,
                }
                self._state("reserved", user, key)
                return Says("reserved", data=self.record(user, key) or {})
        return Says("no-free-second", "resource-exhausted")

    def _confirm(self, user: str, key: str, *, grant_expires_at_ms: int) -> Says:
        cap = self.caps.get((user, key))
        if cap is None:
            return Says("unreserved", "not-found")
        pointed = self.pointer.get(user) == key
        if cap["state"] == "revoked":
            return Says("revoked", "failed-precondition")
        if cap["state"] == "superseded" or (cap["state"] == "confirmed_active" and not pointed):
            return Says("superseded", "failed-precondition")
        if cap["state"] == "legacy":
            return Says("legacy", "failed-precondition")
        if cap["generation"] != self._generation(user):
            return Says("stopped", "cancelled")
        if grant_expires_at_ms != cap["second"]:
            return Says("expiry-mismatch", "conflict")
        if cap["second"] <= self.now_ms:
            return Says("grant-lapsed", "expired")
        if cap["state"] == "confirmed_active":
            return Says("already_confirmed", data=self.record(user, key) or {})
        self._look((user, key))
        if cap["state"] == "expired":
            return Says("reservation-expired", "expired")
        before = self.active(user)
        if before is not None:
            self._end(user, self.pointer[user], "superseded")
        self.pointer[user] = key
        cap["state"], cap["confirmed"] = "confirmed_active", self.now_ms
        self._state("confirmed", user, key)
        return Says("confirmed", data=self.record(user, key) or {})

    def _authorize(self, user: str, *, amount: int, grant_expires_at_ms: int) -> Says:
        if amount < 1:
            return Says("out-of-range", "bad-request")
        reason = self.why_not(user, self.now_ms)
        cap = self.active(user)
        if reason is None and cap is not None:
            if cap["second"] != grant_expires_at_ms:
                reason = "grant-mismatch"
            elif amount > cap["cap"]:
                reason = "over-cap"
            else:
                valid = min(self.permit_ms, cap["second"] - self.now_ms)
                end = self.now_ms + valid
                self.permits_end[user] = max(self.permits_end.get(user, 0), end)
                shown = {"valid_for_ms": valid, "cap": cap["cap"], "expires_at_ms": cap["second"]}
                return Says("allowed", data=shown)
        assert reason is not None
        told = {"reason": reason, "amount": amount, "grant_expires_at_ms": grant_expires_at_ms}
        self.facts.append(("refused", user, told))
        return Says(reason, CODES[reason])

    def _revoke(self, user: str, *, expires_at_ms: int) -> Says:
        cap = self.active(user)
        if cap is None or cap["second"] != expires_at_ms:
            return Says("nothing-to-revoke")
        key = self.pointer[user]
        self._end(user, key, "revoked")
        return Says("revoked", data=self.record(user, key) or {})

    def _stop(self, user: str) -> Says:
        cap = self.active(user)
        self.generation[user] = self._generation(user) + 1
        shown: Json = {
            "generation": self.generation[user],
            "quiet_after_ms": max(self.now_ms, self.permits_end.get(user, 0)),
            "expires_at_ms": None,
        }
        if cap is not None:
            cap |= {"state": "revoked", "ended": self.now_ms}
            shown["expires_at_ms"] = cap["second"]
        told = {name: value for name, value in shown.items() if value is not None}
        self.facts.append(("stopped", user, told))
        return Says("stopped", data=shown | self._known(user))

    def _bump(self, user: str) -> Says:
        self.generation[user] = self._generation(user) + 1
        shown = {"generation": self.generation[user]}
        self.facts.append(("bumped", user, shown))
        return Says("bumped", data=shown | self._known(user))

    def _known(self, user: str) -> Json:
        known = any(name == user for name, _ in self.caps)
        return {"known": known if self.mended else None}

    def _import(self, *, import_id: str, chunk: int, of: int, records: list[Any]) -> Says:
        if chunk > of:
            return Says("out-of-range", "bad-request")
        going = self.imported
        if going is not None and going["done_at_ms"] is not None:
            return Says("already-imported", "already-exists")
        if going is None or going["import_id"] != import_id:
            going = {"import_id": import_id, "chunks": 0, "of": of, "done_at_ms": None}
            going |= dict.fromkeys(
                ("imported", "malformed", "duplicates", "shared_seconds", "shared_keys"), 0
            )
        if chunk <= going["chunks"]:
            return Says("already_taken_in", data=dict(going))
        if chunk != going["chunks"] + 1:
            return Says("chunk-out-of-order", "failed-precondition")
        self.imported = going
        going["chunks"] = chunk
        for record in records:
            self._take_in(record, going)
        if chunk == of:
            going["done_at_ms"] = self.now_ms
        return Says("imported" if chunk == of else "taken_in", data=dict(going))

    def _take_in(self, record: Json, going: Json) -> None:
        if record.get("mintKey") is None:
            going["malformed"] += 1
            return
        user, key = record["userId"], record["mintKey"]
        second = record["expiresAt"] // SECOND_MS * SECOND_MS
        known = self.caps.get((user, key))
        if known is not None and known["second"] == second:
            going["duplicates"] += 1
            return
        if known is not None and (user, second) in self.taken:
            going["duplicates"] += 1
            return
        going["imported"] += 1
        if (user, second) in self.taken:
            going["shared_seconds"] += 1
        self.taken.add((user, second))
        if known is not None:
            going["shared_keys"] += 1
            return
        self.caps[user, key] = {
            "state": "legacy",
            "second": second,
            "asked": record["expiresAt"],
            "cap": record["perSwapCapUsd"],
            "version": record.get("requiredVersion", 2 if self.mended else 1),
            "generation": None,
            "reserved": record["reservedAt"],
            "confirmed": None,
            "ended": None,
        }

    # -- parts --------------------------------------------------------------------------------

    def _generation(self, user: str) -> int:
        return self.generation.get(user, 0)

    def _look(self, name: tuple[str, str]) -> None:
        cap = self.caps[name]
        if cap["state"] == "reserved" and self.now_ms - cap["reserved"] > WINDOW_MS:
            self._end(*name, "expired")

    def _end(self, user: str, key: str, state: str) -> None:
        self.caps[user, key] |= {"state": state, "ended": self.now_ms}
        self._state(state, user, key)

    def _state(self, kind: str, user: str, key: str) -> None:
        cap = self.caps[user, key]
        told = {"expires_at_ms": cap["second"], "cap": cap["cap"], "generation": cap["generation"]}
        self.facts.append((kind, user, told))
