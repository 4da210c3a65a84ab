"""Every error knows its exit status and its code, as the command-line contract has them."""

import pytest

from strata_cli import errors

EXPECTED = {
    "StrataError": (1, "failed"),
    "UsageProblem": (2, "usage"),
    "PartlyDone": (3, "partly"),
    "NotFound": (10, "not_found"),
    "Locked": (11, "locked"),
    "Bad": (12, "bad"),
    "Refused": (13, "refused"),
    "ModelUnavailable": (14, "model"),
    "NoRoom": (15, "no_room"),
    "ContextFull": (15, "no_room"),
    "StorageFailed": (1, "io"),
    "DiskFull": (15, "no_room"),
    "Interrupted": (130, "interrupted"),
    "Terminated": (143, "terminated"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_status_and_code(name: str) -> None:
    error = getattr(errors, name)("what, where", hint="what next")
    assert isinstance(error, errors.Told) and isinstance(error, errors.StrataError) != isinstance(error, errors.Stopped)
    assert (error.exit_code, error.code) == EXPECTED[name]
    assert (error.message, error.hint, str(error)) == ("what, where", "what next", "what, where")


@pytest.mark.parametrize("name", ["Interrupted", "Terminated"])
def test_a_signal_is_no_failure_that_somebody_gets_by_without(name: str) -> None:
    """Many go on without a file that cannot be read; none of them may take Ctrl-C for that."""
    assert not issubclass(getattr(errors, name), Exception)


def test_a_full_disk_is_caught_as_storage_and_as_no_room() -> None:
    error = errors.DiskFull("x")
    assert isinstance(error, errors.StorageFailed) and isinstance(error, errors.NoRoom)
    assert error.reason == "no_room"


def test_reasons() -> None:
    assert errors.Refused("x").reason == "refused"
    assert errors.Refused("x", reason="identity").reason == "identity"
    assert errors.StorageFailed("x").reason == "io"
