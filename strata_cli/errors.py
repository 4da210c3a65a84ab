"""The error tree: every failure that a user may see, with its exit status and its code.

    Told
    ├── StrataError 1 failed
    │   ├── UsageProblem 2 usage          ├── ModelUnavailable 14 model
    │   ├── PartlyDone 3 partly           ├── NoRoom 15 no_room
    │   ├── NotFound 10 not_found         │   └── ContextFull 15 no_room
    │   ├── Locked 11 locked              └── StorageFailed 1 io
    │   ├── Bad 12 bad                        └── DiskFull 15 no_room (also a NoRoom)
    │   └── Refused 13 refused
    └── Stopped
        ├── Interrupted 130 interrupted
        └── Terminated 143 terminated

It owns no text: the raiser says what happened and where (`message`), and what to do next (`hint`).
"""

from typing import ClassVar


class Told(BaseException):
    """How a command ends that does not succeed: one line. `message` says what and where, `hint` what to do next."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "failed"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class StrataError(Told, Exception):
    """A failure: of a file, the engine, the disk, or of what was asked for."""


class UsageProblem(StrataError):
    """The command line, a name or a value is not one that strata takes."""

    exit_code = 2
    code = "usage"


class PartlyDone(StrataError):
    """Some of what was asked is done, and the rest cannot be."""

    exit_code = 3
    code = "partly"


class NotFound(StrataError):
    """No such conversation, prefix or file."""

    exit_code = 10
    code = "not_found"


class Locked(StrataError):
    """Another process holds what is needed; the message names it."""

    exit_code = 11
    code = "locked"


class Bad(StrataError):
    """The bytes fail their digest, or are malformed."""

    exit_code = 12
    code = "bad"


class Refused(StrataError):
    """Intact, but not usable here: other model, engine or configuration. The file stays where it is.

    `reason` is one of the `not_reused` codes of the command-line contract, or "refused".
    """

    exit_code = 13
    code = "refused"

    def __init__(self, message: str, *, reason: str = "refused", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class ModelUnavailable(StrataError):
    """The model cannot be found or loaded."""

    exit_code = 14
    code = "model"


class NoRoom(StrataError):
    """Disk, memory or context is too small."""

    exit_code = 15
    code = "no_room"


class ContextFull(NoRoom):
    """The prompt leaves no room in the context for an answer."""


class StorageFailed(StrataError):
    """The operating system refused a file operation. `reason` is "io", "permission" or "no_room"."""

    exit_code = 1
    code = "io"

    def __init__(self, message: str, *, reason: str = "io", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class DiskFull(StorageFailed, NoRoom):
    """The disk, the quota or the file-size limit has no room for a write; caught as either of its parents."""

    exit_code = 15
    code = "no_room"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, reason="no_room", hint=hint)


class BelowFloor(DiskFull):
    """A write would leave less free space than `store.min_free_disk_mib`; `needed_bytes` is what it takes."""

    def __init__(self, message: str, *, needed_bytes: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes


class Stopped(Told):
    """A signal asked to stop. No Exception: whoever gets by without a file must not take it for that file's failure."""


class Interrupted(Stopped):
    """The user pressed Ctrl-C."""

    exit_code = 130
    code = "interrupted"


class Terminated(Stopped):
    """SIGTERM or SIGHUP asked the process to end."""

    exit_code = 143
    code = "terminated"
