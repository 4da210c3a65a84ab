"""The writer's thread: order, waiting, hurry, and an end that waits for nobody (B3, B4)."""

import threading
import time

from strata_cli.writer import Writer


def test_jobs_run_one_at_a_time_and_in_order() -> None:
    writer, done, running = Writer(), list[int](), threading.Lock()

    def job(number: int) -> None:
        assert running.acquire(blocking=False)
        time.sleep(0.001)
        done.append(number)
        running.release()

    for number in range(20):
        writer.submit(lambda number=number: job(number))
    assert writer.wait(10) and done == list(range(20)) and writer.pending == 0
    writer.close()


def test_B3_submitting_does_not_wait() -> None:
    writer, go = Writer(), threading.Event()
    begun = time.monotonic()
    writer.submit(lambda: go.wait(10) and None)
    writer.submit(lambda: None)
    assert time.monotonic() - begun < 1 and writer.pending == 2
    go.set()
    assert writer.wait(10)
    writer.close()


def test_B4_waiting_ends_with_the_time_and_with_a_second_signal() -> None:
    writer, go = Writer(), threading.Event()
    writer.submit(lambda: go.wait(10) and None)
    assert not writer.wait(0.05)
    assert not writer.wait(None, hurried=lambda: True)
    assert not writer.wait(10, hurried=lambda: True)
    go.set()
    assert writer.wait(10)
    writer.close()


def test_nothing_to_do_needs_no_thread() -> None:
    writer, before = Writer(), threading.active_count()
    assert writer.wait(0) and threading.active_count() == before
    writer.close()


def test_closing_ends_the_thread_behind_what_is_pending() -> None:
    writer, done = Writer(), threading.Event()
    writer.submit(done.set)
    thread = writer._thread
    writer.close()
    assert thread is not None
    thread.join(10)
    assert done.is_set() and not thread.is_alive()


def test_B4_a_disk_that_hangs_does_not_keep_the_process() -> None:
    writer, go = Writer(), threading.Event()
    writer.submit(lambda: go.wait(30) and None)
    assert writer._thread is not None and writer._thread.daemon
    go.set()
    writer.close()
