"""The errors a user can cause. A message says what was given, what was expected, what to do."""


class PvmlError(ValueError):
    """Bad input or a bad request. The command line prints the message and exits with code 2."""


class HubUnavailable(PvmlError):
    """The Hugging Face hub, or a file on it, cannot be reached from here."""


class RunDirError(PvmlError):
    """A run directory is missing, damaged, or would be overwritten."""


class CheckFailed(PvmlError):
    """A check that the user asked for failed. Exit code 1."""
