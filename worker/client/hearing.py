"""What of a message that is heard may be believed.

The stream repeats what it has stored, and names stream and subject in headers of its own. Whoever
may read a stored message can have it sent onto any public subject, and gets the same headers, but
not the subject that the message is stored under. So whatever passes here is stored, word for word,
where it was heard; it may be heard twice, and late.
"""

from schemas import headers as h
from schemas.codes import Code
from schemas.names import Names
from schemas.results import Result
from worker.bus.subscription import Msg


def is_stored(names: Names, msg: Msg) -> bool:
    """Whether a result, grant or fact is stored under the very subject on which it was heard."""
    stream, subject = msg.headers.single(h.STORED_IN), msg.headers.single(h.STORED_ON)
    return stream == names.res_stream and subject == msg.subject


def is_put_off(result: Result) -> bool:
    """Whether a result only says that there is none yet: the one kind that no stream holds."""
    return result.error is not None and result.error.code == Code.UNAVAILABLE
