"""What a server's URL says, by RFC 3986."""

import pytest

from worker import broker
from worker.bus.urls import ServerUrl
from worker.settings import Settings


@pytest.mark.parametrize(
    ("url", "user", "password", "token", "bare"),
    [
        ("nats://h", None, None, None, "nats://h:4222"),
        ("TLS://H:1", None, None, None, "tls://h:1"),
        ("nats://u:p@h:7", "u", "p", None, "nats://h:7"),
        ("nats://u:@h:7", "u", "", None, "nats://h:7"),
        ("nats://u%40x:%2F%3A%25%23%40+%20@h", "u@x", "/:%#@+ ", None, "nats://h:4222"),
        ("nats://u:%C3%A9@h", "u", "é", None, "nats://h:4222"),
        ("nats://u:50%@h", "u", "50%", None, "nats://h:4222"),
        ("nats://s%2Fcret@h", None, None, "s/cret", "nats://h:4222"),
        ("nats://u:p@[::1]:9", "u", "p", None, "nats://[::1]:9"),
    ],
)
def test_who_and_where(
    url: str, user: str | None, password: str | None, token: str | None, bare: str
) -> None:
    found = ServerUrl.parse(url)
    assert (found.user, found.password, found.token, found.bare) == (user, password, token, bare)
    for secret in (password, token):
        assert not secret or len(secret) < 2 or secret not in repr(found)


@pytest.mark.parametrize(
    "url", ["http://h", "nats://", "nats://h:x", "nats://u:a/b@h", "nats://a#b"]
)
def test_what_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="a server is nats://host:port") as caught:
        ServerUrl.parse(url)
    assert len(url) < 8 or url not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "user", "prefix"),
    [
        ("nats://TOKEN@h", None, "_INBOX"),
        ("nats://carol:p@h", None, "_INBOX_carol"),
        ("nats://h", "worker", "_INBOX_worker"),
        ("nats://a%20b:p@h", None, "_INBOX"),
        ("nats://a.b%3E:p@h", None, "_INBOX"),
    ],
)
def test_only_a_users_name_becomes_part_of_a_reply_subject(
    url: str, user: str | None, prefix: str
) -> None:
    settings = Settings(nats_url=url, nats_user=user)
    assert broker.options(settings).inbox_prefix == prefix
