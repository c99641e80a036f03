"""What a stranger may choose: every byte, cut characters, and where in a message they stand.

Nothing here knows the product's grammars. It knows what a broker lets a user publish, and puts
bytes there that no client library would send.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

SINGLES: Final = tuple(bytes([number]) for number in range(1, 256))
CHARACTERS: Final = (
    *(b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3", b"\xf0"),  # cut off
    *(b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff\xfe"),  # never characters
    *(b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\xa0"),  # ends of lines, and blanks
    *(b"\xef\xbb\xbf", b"\xe2\x80\xae", b"\xcc\x81", b"\xc5\xbf", b"\xd9\xa1"),  # signs and digits
)
ODD: Final = SINGLES + CHARACTERS

PLAIN: Final = "a1" * 13
"""A token that every grammar takes: a principal, a life, an endpoint, an id, a mint key."""

BODIES: Final = (b'{"v":1}', b"", b"\xff\x00\x0b", b'{"v":1,"v":1}', b'{"v":1e0}', b"[]")
"""None of them asks for more than its verb alone does."""

FIRST_LINES: Final = (b"NATS/1.0", b"NATS/1.0 503", b"NATS/1.0 404 No Messages", b"NATS/1.0 100")
NAMES: Final = (
    *(b"Tidegate-Command", b"Tidegate-Cause", b"traceparent", b"Status", b"Description"),
    *(b"Nats-Msg-Id", b"Nats-Stream", b"Nats-Sequence", b"Nats-Time-Stamp", b"Nats-Subject"),
    *(b"Nats-Schedule", b"Nats-Scheduler", b"Nats-Rollup", b"Nats-TTL", b"Nats-Batch-Id"),
    *(b"Nats-Trace-Dest", b"Nats-Service-Error", b"Nats-Service-Error-Code"),
    *(b"Nats-Expected-Stream", b"Nats-Expected-Last-Sequence", b"Nats-Pending-Bytes"),
)


@dataclass(frozen=True, slots=True)
class Said:
    """One message as a stranger says it.

    Attributes:
        user: Whose login.
        subject: Where to.
        reply: Where the answer is to go; empty for nowhere.
        headers: Lines of its header block, the first one too; ``None`` if it has none.
        body: What it carries.
        sizes: Sizes that are told in place of the true ones.
    """

    user: str
    subject: bytes
    reply: bytes = b""
    headers: tuple[bytes, ...] | None = None
    body: bytes = b'{"v":1}'
    sizes: bytes | None = None

    @property
    def wire(self) -> bytes:
        """Its bytes on the wire."""
        reply = b" " + self.reply if self.reply else b""
        if self.headers is None:
            sizes = self.sizes or b"%d" % len(self.body)
            return b"PUB %s%s %s\r\n%s\r\n" % (self.subject, reply, sizes, self.body)
        block = b"".join(line + b"\r\n" for line in (*self.headers, b""))
        sizes = self.sizes or b"%d %d" % (len(block), len(block) + len(self.body))
        return b"HPUB %s%s %s\r\n%s%s\r\n" % (self.subject, reply, sizes, block, self.body)


def granted(conf: str) -> dict[str, list[str]]:
    """The subjects that each user of a configuration may publish to, but for the worker's."""
    found = re.findall(r'user: "([^"]+)".*?publish: \{ allow: \[(.*?)\]', conf, re.DOTALL)
    grants = {user: re.findall(r'"([^"]+)"', allowed) for user, allowed in found}
    return {user: allowed for user, allowed in grants.items() if user != "worker"}


def placed(odd: bytes) -> tuple[bytes, ...]:
    """A token with odd bytes in it: alone, in front, within, at the end."""
    plain = PLAIN.encode()
    return (odd, odd + plain[1:], plain[:9] + odd + plain[9 + len(odd) :], plain[:-1] + odd)


def tokens_of(pattern: str) -> list[bytes]:
    """A subject that a grant covers, token by token."""
    filled = pattern.replace("*", PLAIN).replace(">", f"{PLAIN}.{PLAIN}")
    return [token.encode() for token in filled.split(".")]


def free_of(pattern: str) -> list[int]:
    """Which tokens of a grant the user chooses."""
    tokens = pattern.split(".")
    free = [place for place, token in enumerate(tokens) if token in ("*", ">")]
    return [*free, len(tokens)] if tokens[-1] == ">" else free


def with_token(tokens: Sequence[bytes], place: int, token: bytes) -> bytes:
    return b".".join((*tokens[:place], token, *tokens[place + 1 :]))


def every_subject(grants: dict[str, list[str]]) -> Iterator[Said]:
    """Every odd thing in every token of every subject, the granted ones too."""
    for user, patterns in grants.items():
        for pattern in patterns:
            tokens, free = tokens_of(pattern), free_of(pattern)
            for place, odd in itertools.product(range(len(tokens)), ODD):
                for token in placed(odd) if place in free else placed(odd)[2:3]:
                    yield Said(user, with_token(tokens, place, token))


def every_header(user: str, subject: bytes) -> Iterator[Said]:
    """Every odd thing in names, values and first lines of headers."""
    for odd in ODD:
        for line in (
            *(b"Tidegate-Command: " + token for token in placed(odd)),
            *(name + b": " + odd for name in NAMES),
            *(token + b": value" for token in placed(odd)),
            odd,
        ):
            yield Said(user, subject, headers=(b"NATS/1.0", line))
        for first in FIRST_LINES:
            yield Said(user, subject, headers=(first + odd, b"A: b"))


def every_reply(user: str, subject: bytes) -> Iterator[Said]:
    """Every odd thing in the subject of the answer."""
    for odd in ODD:
        for token in placed(odd):
            yield Said(user, subject, b"_INBOX_" + user.encode() + b"." + token)


SIZES: Final = (b"0", b"-1", b"5", b"007", b"7 7", b"99999999999", b"1e3", b"+7", b"\x0b7", b"")


def every_size(user: str, subject: bytes) -> Iterator[Said]:
    """Sizes that are not true: the broker hangs up on most of them."""
    for sizes in SIZES:
        yield Said(user, subject, sizes=sizes)
        yield Said(user, subject, headers=(b"NATS/1.0", b"A: b"), sizes=b"17 " + sizes)
    for size in (64 * 1024, 64 * 1024 + 1, 1_000_000):
        yield Said(user, subject, body=b"{" + b" " * (size - 2) + b"}")
    for size in (60_000, 900_000):
        yield Said(user, subject, headers=(b"NATS/1.0", b"A: " + b"b" * size))


def drawn(rng: random.Random, grants: dict[str, list[str]]) -> Iterator[Said]:
    """Messages without end: pairs of odd things, anywhere in anything."""
    users = [user for user, patterns in grants.items() if any(map(free_of, patterns))]
    while True:
        user = rng.choice(users)
        pattern = rng.choice([one for one in grants[user] if free_of(one)])
        tokens = tokens_of(pattern)
        for place in rng.sample(
            free_of(pattern), 1 if rng.random() < 0.5 else len(free_of(pattern))
        ):
            token = rng.choice(placed(rng.choice(ODD) + rng.choice(ODD)))
            tokens[place] = rng.choice((token, PLAIN.encode()))
        said = Said(user, b".".join(tokens), body=rng.choice(BODIES))
        if rng.random() < 0.4:
            lines = [
                rng.choice((*NAMES, *placed(rng.choice(ODD))))
                + b": "
                + rng.choice(ODD)
                + rng.choice(ODD)
                for _ in range(rng.randint(1, 3))
            ]
            said = replace(said, headers=(rng.choice(FIRST_LINES), *lines))
        if rng.random() < 0.3:
            reply = b"_INBOX_" + user.encode() + b"." + rng.choice(placed(rng.choice(ODD)))
            said = replace(said, reply=reply)
        yield said


def each_once(rng: random.Random, grants: dict[str, list[str]]) -> list[Said]:
    """Every odd thing at least once, in a token and in a header, to every kind of subject."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for user, patterns in grants.items():
        for pattern in filter(free_of, patterns):
            kinds.setdefault(_kind_of(pattern), []).append((user, pattern))
    found: list[Said] = []
    for choices in kinds.values():
        for odd in ODD:
            user, pattern = rng.choice(choices)
            tokens = tokens_of(pattern)
            place = rng.choice(free_of(pattern))
            found.append(Said(user, with_token(tokens, place, rng.choice(placed(odd)))))
            plain = b".".join(tokens)
            name = rng.choice(NAMES)
            line = rng.choice((name + b": " + odd, odd + b": a", b"Tidegate-Command: " + odd))
            found.append(Said(user, plain, headers=(rng.choice(FIRST_LINES), line)))
    rng.shuffle(found)
    return found


def _kind_of(pattern: str) -> str:
    """What becomes of a message there: a stream's name for it, the query's service, a beat, …"""
    tokens = pattern.split(".")
    if "cmd" in tokens:
        return "cp" if tokens[5] == "cp" else "ledger"
    return tokens[2] if tokens[0] == "tidegate" else tokens[0]
