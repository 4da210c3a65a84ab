"""The counts of the service, in Prometheus' text form."""

import re

from strata_cli.serve.metrics import Metrics, Tally, as_text

SAMPLE = re.compile(r'strata_[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? [0-9.e+-]+')


def test_every_line_is_help_type_or_a_sample() -> None:
    tally = Tally()
    tally.request("/v1/chat/completions", 200)
    tally.request("/v1/chat/completions", 200)
    tally.request('odd "route"\n\\', 404)
    tally.read(evaluated=10, reused=20, generated=3)
    tally.parked(segments=1, bytes_written=4096, capture_ms=2.0, ms=8.0)
    tally.parked(segments=0, bytes_written=100, capture_ms=0.0, ms=1.0)
    tally.waited(0.25)
    text = as_text(tally.metrics(7))
    assert text.endswith("\n")
    names = set()
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP strata_[a-z_]+ [A-Z].*\.|TYPE strata_[a-z_]+ (counter|gauge))", line), line
            names.add(line.split()[2])
        else:
            assert SAMPLE.fullmatch(line), line
            assert re.split(r"[{ ]", line)[0] in names, "a sample follows its type"
    assert 'strata_requests_total{route="/v1/chat/completions",status="200"} 2\n' in text
    assert r'strata_requests_total{route="odd \"route\"\n\\",status="404"} 1' in text
    assert "strata_tokens_reused_total 20\n" in text and "strata_written_bytes_total 4196\n" in text
    assert "strata_parks_total 1\n" in text and "strata_queue_length 7\n" in text
    assert 'strata_stage_seconds_total{stage="queue"} 0.25\n' in text


def test_nothing_counted_yet() -> None:
    text = as_text(Metrics())
    assert "strata_restores_total 0\n" in text and "strata_requests_total{" not in text
