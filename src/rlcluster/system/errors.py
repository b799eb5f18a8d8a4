"""Errors for the user to fix: one clear line and an exit code, never a traceback."""

EXIT_USAGE = 2
EXIT_RUN_FAILED = 1
EXIT_TIMEOUT = 71
EXIT_STORAGE = 74


class UserError(Exception):
    """Says what is wrong, with the values, and what to do about it."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RankError(UserError):
    """A rank has failed, and with it the run. `failed_rank` is its number, if known."""

    def __init__(self, message: str, exit_code: int, failed_rank: int | None) -> None:
        super().__init__(message, exit_code)
        self.failed_rank = failed_rank
