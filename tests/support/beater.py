"""An owner that beats, as a process of its own that speaks plain NATS and nothing of ours."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from schemas import subjects
from schemas.names import Names
from schemas.subjects import Speaker

BEATS: Final = """
import socket, sys, time
port, subject, every = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
while True:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as link:
            link.sendall(b'CONNECT {"verbose":false,"pedantic":false}\\r\\nPING\\r\\n')
            link.recv(65536)
            print("up", flush=True)
            while True:
                link.sendall(b"PUB " + subject.encode() + b" 0\\r\\n\\r\\n")
                link.settimeout(0.001)
                try:
                    if not (said := link.recv(65536)): raise OSError
                    if said.startswith(b"PING"): link.sendall(b"PONG\\r\\n")
                except TimeoutError:
                    pass
                time.sleep(every)
    except OSError:
        time.sleep(0.1)
"""


@contextlib.contextmanager
def beating(
    port: int, names: Names, owner: Speaker, *, every_s: float = 0.1
) -> Iterator[subprocess.Popen[str]]:
    """Beat until the block ends or the process is killed; it beats when the block begins."""
    arguments = [str(port), subjects.heartbeat(names, owner), str(every_s)]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BEATS, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.communicate()
