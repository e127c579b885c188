"""How a user stops training: Ctrl-C and SIGTERM. Knows nothing of training."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class Interrupted(RuntimeError):
    """Somebody asked training to stop, by the signal of this number; all is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


class Stop(threading.Event):
    """Set once training should stop; number: that of the signal."""

    number = 0


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """An event that Ctrl-C and SIGTERM set the first time; a second Ctrl-C raises KeyboardInterrupt."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.number = number
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not set from Python
