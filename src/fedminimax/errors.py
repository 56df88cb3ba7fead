"""The one error a user meets: what is wrong, and what to do about it."""


class InputError(ValueError):
    """Wrong input. The message is one sentence that names the cause and the cure.

    The command line prints the message alone; in Python it is an ordinary ``ValueError``.
    """
