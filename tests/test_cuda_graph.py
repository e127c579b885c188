"""What is done around the capture of a CUDA graph, without a GPU; tests of captured layers have one."""

import gc
import weakref

import torch

from momentumrnn import cuda_graph


def test_a_replay_keeps_what_it_was_captured_from(monkeypatch):
    """Else the memory that the graph reads would be given back, and a replay would read whatever is there."""

    class Owner:
        def __call__(self):
            raise AssertionError("a replay does not call it again")

    replays = []
    graph = type("Graph", (), {"replay": lambda self: replays.append(1)})()
    monkeypatch.setattr(cuda_graph, "capture", lambda call: (graph, None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    owner = Owner()
    alive, replay = weakref.ref(owner), cuda_graph.captured(owner)
    del owner
    gc.collect()
    assert alive() is not None
    replay()
    assert replays == [1]
    del replay
    gc.collect()
    assert alive() is None
