"""Words for people, beside the stable words of the contract."""

from typing import Final

BLOCKS: Final = {
    "seats": "every seat is taken",
    "starts": "too many turns are starting",
    "pacing": "the next admission is paced",
    "drain": "admission is drained",
    "cooldown": "its model rests",
    "silence": "its owner is silent",
    "payload": "its prompt must be sealed again",
    "order": "another turn goes first",
    "empty": "nothing waits",
}
FREES: Final = {
    "owner": "its owner",
    "start-timeout": "the start timeout",
    "connector-gone": "proof that the connector is gone",
    "child-gone": "that its child is gone",
    "group-empty": "that the child's group is empty",
    "operator": "an operator (resolve)",
}
