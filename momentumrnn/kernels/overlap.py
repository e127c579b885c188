"""A second stream, so that a recurrence runs beside the products that use the chunk before it."""

import functools
from collections.abc import Callable

import torch


class Overlap:
    """Runs the recurrences of chunks on a second stream, while all else goes on in the current one.

    The first two recurrences may begin at once. Memory that a recurrence reads or writes must exist when the
    first begins, and stay until the end. All calls on a device share the stream: while one call is captured
    in a CUDA graph, no other thread can run one.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream, self.current = side_stream(device.index), torch.cuda.current_stream(device)
        self.events: list[torch.cuda.Event] = []

    def begin(self, k: int, recur: Callable[[int], None]) -> None:
        """Start recurrence k on the second stream.

        Every one but the second waits for the work queued here so far.
        """
        if k != 1:
            self.stream.wait_stream(self.current)
        with torch.cuda.stream(self.stream):
            recur(k)
        self.events.append(self.stream.record_event())

    def wait_for(self, k: int) -> None:
        """Let what comes next in the current stream wait for recurrence k."""
        self.current.wait_event(self.events[k])

    def close(self) -> None:
        """Wait for all that has begun, so that its memory can be given back."""
        if self.events:
            self.current.wait_event(self.events[-1])


@functools.cache
def side_stream(device: int) -> torch.cuda.Stream:
    """The stream of the recurrences. Its priority is high, because all else waits for them."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
