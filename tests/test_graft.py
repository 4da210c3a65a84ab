"""A branch put onto another log: what it says, what stays, and that nothing is said twice."""

from hypothesis import given
from hypothesis import strategies as st

from strata_cli.graft import branch_lines, graft, same_text
from strata_cli.log import Line, Log, append_bytes, parse_log

WORDS = st.lists(st.sampled_from("abc"), max_size=6)


def add(log: Log, kind: str, parent: int | None, text: str = "") -> Log:
    message = {"role": "user", "content": text} if kind == "message" else None
    settings = {"system": text} if kind == "setup" else {}
    tokens = (len(log.lines) % 7,) if kind == "message" else ()
    start = len(log.tokens(parent)) if parent is not None and kind == "message" else 0
    line = Line(log.next_id, parent, kind, "2026-01-01T00:00:00Z", message, tokens, start, "t", (), settings)
    return Log((*log.lines, line), ())


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log with some branches, a setting now and then, and sometimes a step back at its end."""
    log = Log()
    for text in draw(WORDS):
        ids = [line.id for line in log.lines if line.kind == "message"]
        parent = draw(st.sampled_from([None, log.tip, *ids])) if ids else None
        if draw(st.booleans()):
            log = add(log, "setup", parent, text)
        log = add(log, "message", parent, text)
    if log.lines and draw(st.booleans()):
        log = add(log, "back", draw(st.sampled_from([None, *(line.id for line in log.branch())])))
    return log


def said(log: Log) -> list[object]:
    return [(line.message, line.tokens, line.start) for line in log.branch()]


@given(logs(), logs())
def test_the_branch_is_the_sources_and_everything_else_stays(target: Log, source: Log) -> None:
    new = graft(target, source, "2026-01-02T00:00:00Z")
    grown = parse_log(append_bytes(target.lines) + append_bytes(new))
    assert not grown.bad
    assert said(grown) == said(source)
    assert grown.tokens() == source.tokens()
    assert grown.lines[: len(target.lines)] == target.lines
    if source.setup():
        assert grown.setup() == source.setup()


@given(logs(), logs())
def test_doing_it_again_adds_nothing(target: Log, source: Log) -> None:
    grown = Log((*target.lines, *graft(target, source, "")), ())
    assert graft(grown, source, "") == ()


@given(logs())
def test_onto_itself_adds_nothing(log: Log) -> None:
    assert graft(log, log, "") == ()
    assert same_text(log, log)


@given(logs())
def test_a_branch_alone_says_the_same(log: Log) -> None:
    alone = parse_log(append_bytes(branch_lines(log)))
    assert said(alone) == said(log) and alone.setup() == log.setup() and alone.tokens() == log.tokens()
    assert alone.alternatives() == ()
