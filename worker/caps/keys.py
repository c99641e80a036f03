"""The key tokens behind a cap verb: ``<user>[.<mint key>]``, checked by name."""

from schemas import tokens
from schemas.codes import BadInput


def user_of(key: tuple[str, ...]) -> str:
    """The person a verb is about.

    Raises:
        BadInput: Reason ``bad-key`` for another number of tokens, ``bad-user`` for a malformed one.
    """
    if len(key) != 1:
        raise BadInput("subject", "bad-key", "the subject must end in <user>")
    return _user(key[0])


def user_and_key_of(key: tuple[str, ...]) -> tuple[str, str]:
    """The person and the mint key a verb is about.

    Raises:
        BadInput: As ``user_of``, and ``bad-mint-key`` for a malformed mint key.
    """
    if len(key) != 2:
        raise BadInput("subject", "bad-key", "the subject must end in <user>.<mint key>")
    user, mint_key = key
    if not tokens.is_mint_key(mint_key):
        raise BadInput(
            "subject",
            "bad-mint-key",
            f"the mint key in the subject does not match {tokens.MINT_KEY_PATTERN}",
        )
    return _user(user), mint_key


def none_of(key: tuple[str, ...]) -> None:
    """Check that a verb that is about nobody names nobody.

    Raises:
        BadInput: Reason ``bad-key``.
    """
    if key:
        raise BadInput("subject", "bad-key", "nothing follows this verb in its subject")


def _user(user: str) -> str:
    if not tokens.is_user(user):
        raise BadInput(
            "subject",
            "bad-user",
            f"the user id in the subject does not match {tokens.USER_PATTERN}",
        )
    return user
