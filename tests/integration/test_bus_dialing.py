"""A dial that is cancelled is over, whenever it is cancelled."""

import asyncio

from tests.support.server import Server
from worker.bus import dialing
from worker.bus.options import ConnectOptions
from worker.bus.urls import ServerUrl
from worker.bus.wire import WireClient

MOMENTS = 40
WANTED = 60


async def test_a_cancelled_dial_hands_out_no_client_at_any_moment(server: Server) -> None:
    target, options = (
        dialing.Target(ServerUrl.parse(server.url)),
        ConnectOptions(servers=(server.url,)),
    )

    def dial() -> asyncio.Task[WireClient]:
        return asyncio.create_task(
            dialing.dial(target, options, name="cancelled", violations=lambda _: None)
        )

    clock = asyncio.get_running_loop().time
    took_s = 1.0
    for _ in range(5):
        began = clock()
        await (await dial()).discard()
        took_s = min(took_s, clock() - began)
    moment = cancelled = 0
    while cancelled < WANTED:
        moment = (moment + 1) % MOMENTS
        dialling = dial()
        await asyncio.wait({dialling}, timeout=took_s * moment / MOMENTS)
        if dialling.cancel():
            cancelled += 1
            await asyncio.wait({dialling})
            assert dialling.cancelled(), f"after {moment}/{MOMENTS} of a dial"
        else:
            await dialling.result().discard()
