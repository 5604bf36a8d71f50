"""Errors for people: one line that names the thing, both values and the remedy. The command exits with code 2."""


class UserError(ValueError):
    """What was asked for cannot be done, and the message says why. Never a defect of the program."""


def one_line(error: BaseException, limit: int = 500) -> str:
    """The message of any error, on one line."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= limit else message[: limit - 3] + "..."
