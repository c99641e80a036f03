"""Who we are to the broker, and whether it is the broker: nkeys, credentials that expire, TLS."""

import asyncio
import datetime
import ipaddress
import secrets
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.integration.bus_server import USER, Signer, connected, eventually, freeze
from tests.support.server import Server
from worker.bus import conf, nkey
from worker.bus.connection import Connection
from worker.bus.errors import TlsRefused, Unauthenticated, Unknown
from worker.bus.jetstream import JetStream
from worker.bus.options import ConnectOptions, TlsOptions


async def test_a_user_with_an_nkey_is_accepted(tmp_path: Path) -> None:
    text = nkey.encode_seed(USER, secrets.token_bytes(32))
    file = tmp_path / "seed"
    file.write_text(text)
    users = [conf.User(nkey.parse_seed(text).public_key, None, "W")]
    server = Server(
        tmp_path, conf.render([], users, store_dir=tmp_path / "s", listen="127.0.0.1:-1")
    )
    await asyncio.to_thread(server.start)
    try:
        async with connected(ConnectOptions((server.url,), nkey_seed_file=file)) as c:
            await c.request("$JS.API.INFO")
        file.write_text(nkey.encode_seed(USER, secrets.token_bytes(32)))
        with pytest.raises(Unauthenticated):
            await Connection.open(ConnectOptions((server.url,), nkey_seed_file=file), name="t")
        with pytest.raises(Unauthenticated, match="cannot be read"):
            await Connection.open(
                ConnectOptions((server.url,), nkey_seed_file=tmp_path / "absent"), name="t"
            )
    finally:
        server.kill()


async def test_expired_credentials_that_were_renewed_are_picked_up(tmp_path: Path) -> None:
    signer = Signer()
    server = Server(tmp_path, signer.conf(tmp_path / "s"))
    await asyncio.to_thread(server.start)
    creds = tmp_path / "user.creds"
    try:
        signer.write_creds(creds, valid_s=3)
        async with connected(ConnectOptions((server.url,), creds_file=creds)) as c:
            await c.request("$JS.API.INFO")
            signer.write_creds(creds, valid_s=60)
            await eventually(lambda: c.reconnects == 1)
            assert await c.wait_connected(10_000)
            await c.request("$JS.API.INFO")
            assert not c.closed.done()
    finally:
        server.kill()


async def test_expired_credentials_that_were_not_renewed_close_for_good(tmp_path: Path) -> None:
    signer = Signer()
    server = Server(tmp_path, signer.conf(tmp_path / "s"))
    await asyncio.to_thread(server.start)
    creds = tmp_path / "user.creds"
    try:
        signer.write_creds(creds, valid_s=2)
        options = ConnectOptions((server.url,), creds_file=creds, refused_limit_ms=1_000)
        c = await Connection.open(options, name="t")
        reason = await asyncio.wait_for(asyncio.shield(c.closed), 10)
        assert "refuses our credentials" in reason
        assert not c.connected
        await c.close()
    finally:
        server.kill()


class Recorder:
    """A server that sends one INFO line and remembers everything it is sent."""

    def __init__(self, info: bytes) -> None:
        self._info = info
        self.received = b""
        self.done = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + self._info + b"\r\n")
        self.received += await reader.read()
        writer.close()
        self.done.set()


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_tls_to_a_server_without_it_sends_nothing(scheme: str) -> None:
    recorder = Recorder(b'{"version":"2.15.1","max_payload":1048576,"headers":true}')
    listener = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        options = ConnectOptions(
            (f"{scheme}://127.0.0.1:{port}",),
            user="u",
            password="secret",
            tls=TlsOptions() if scheme == "nats" else None,
        )
        with pytest.raises(TlsRefused, match="offers none"):
            await Connection.open(options, name="t")
        await asyncio.wait_for(recorder.done.wait(), 5)
        assert recorder.received == b""
    finally:
        listener.close()


async def test_tls_to_a_real_server_without_it_is_refused(server: Server) -> None:
    with pytest.raises(TlsRefused):
        await Connection.open(
            ConnectOptions((server.url.replace("nats:", "tls:"),), user="u", password="p"), name="t"
        )


async def test_a_server_that_only_allows_tls_gets_no_password_in_the_clear() -> None:
    recorder = Recorder(
        b'{"version":"2.15.1","max_payload":1048576,"headers":true,"tls_available":true}'
    )
    listener = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        options = ConnectOptions(
            (f"tls://127.0.0.1:{port}",), user="u", password="secret", connect_timeout_ms=500
        )
        with pytest.raises(Exception, match=r"accept us in time|TLS with"):
            await Connection.open(options, name="t")
        await asyncio.wait_for(recorder.done.wait(), 5)
        assert recorder.received[:2] == b"\x16\x03"
        assert b"secret" not in recorder.received
    finally:
        listener.close()


async def test_a_real_tls_server_is_used_and_a_wrong_one_refused(tmp_path: Path) -> None:
    ca, cert, key = _certificates(tmp_path)
    users = [conf.User("some", "s", "W")]
    text = conf.render(
        [],
        users,
        store_dir=tmp_path / "s",
        listen="127.0.0.1:-1",
        tls=conf.Tls(cert, key),
    )
    server = Server(tmp_path, text)
    await asyncio.to_thread(server.start)
    try:
        url = server.url.replace("nats:", "tls:")
        options = ConnectOptions((url,), user="some", password="s", tls=TlsOptions(ca_file=ca))
        async with connected(options) as c:
            place = JetStream(c)
            assert await place.stream_names() == []
            await c.publish("big", b"x" * 1_000_000)
            await c.flush()
        with pytest.raises(TlsRefused):
            await Connection.open(
                ConnectOptions((url,), user="some", password="s"), name="untrusted"
            )
        with pytest.raises(TlsRefused):
            await Connection.open(
                ConnectOptions(
                    (url,), user="some", password="s", tls=TlsOptions(ca, hostname="other.example")
                ),
                name="other-name",
            )
        with pytest.raises(TlsRefused, match="files"):
            await Connection.open(
                ConnectOptions((url,), tls=TlsOptions(ca_file=tmp_path / "absent")), name="no-file"
            )
    finally:
        server.kill()


async def test_a_stopped_process_that_goes_on_finds_its_connection(server: Server) -> None:
    """A worker that was stopped for a while must not drop a connection that still works."""
    async with connected(server.worker_options(), watchdog_interval_ms=50) as c:
        # Nothing runs in this process meanwhile, as under SIGSTOP.
        time.sleep(1.0)  # noqa: ASYNC251  # the point is to block the loop
        await c.flush()
        await asyncio.sleep(0.2)
        assert c.reconnects == 0


async def test_round_trips_of_a_frozen_broker_are_unknown(tmp_path: Path) -> None:
    server = Server.two_accounts(tmp_path, [])
    await asyncio.to_thread(server.start)
    try:
        async with connected(server.worker_options()) as c:
            await freeze(server.pid)
            with pytest.raises(Unknown):
                await c.flush(100)
    finally:
        server.kill()


def _certificates(directory: Path) -> tuple[Path, Path, Path]:
    """A certificate authority, and a server's certificate for 127.0.0.1 with its key."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test ca")])
    ca = _certificate(ca_name, ca_key.public_key(), ca_name, ca_key, authority=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    cert = _certificate(name, key.public_key(), ca_name, ca_key, authority=False)
    files = directory / "ca.pem", directory / "cert.pem", directory / "key.pem"
    files[0].write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    files[2].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _certificate(
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )


@pytest.mark.parametrize("login", ["user", "token"])
async def test_a_login_in_the_url_is_decoded(tmp_path: Path, login: str) -> None:
    secret = "s/:@%# ü+"
    who = {"user": '{ user: "a@b", password: "%s" }', "token": '{ token: "%s" }'}[login] % secret
    server = Server(tmp_path, f'listen: "127.0.0.1:-1"\nauthorization {who}\n')
    await asyncio.to_thread(server.start)
    written = quote(secret, safe="+")
    at = f"a%40b:{written}@" if login == "user" else f"{written}@"
    try:
        async with connected(ConnectOptions((server.url.replace("//", f"//{at}"),))) as c:
            await c.flush()
        with pytest.raises(Unauthenticated):
            await Connection.open(
                ConnectOptions((server.url.replace("//", "//a%40b:s@"),)), name="t"
            )
    finally:
        server.kill()
