"""Checksums: what was written is read, and any damage is refused or changes nothing that is read."""

import io
import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save

from momentumrnn.experiments.runs.checksums import (
    TRAILER_SIZE,
    ChecksumError,
    RunningHash,
    check_metrics,
    open_checkpoint,
    open_json,
    open_weights,
    read_trailer,
    seal_checkpoint,
    seal_json,
    seal_weights,
)


def flips(content, places=None):
    """The content with one bit flipped: each bit of these bytes, by default of all."""
    for place in range(len(content)) if places is None else places:
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def prefixes(content):
    return (content[:size] for size in range(len(content)))


def refused(read, content):
    """Whether it is refused, by the one error that it may be refused by."""
    try:
        read(content)
    except ChecksumError:
        return True
    return False


def test_an_error_ends_a_sentence_that_begins_with_a_name():
    with pytest.raises(ValueError, match=r"^does not have the checksum .*: it was changed or damaged after"):
        raise ChecksumError


# JSON

RESULT = {
    "command": "momentumrnn run adding é",
    "commit": None,
    "config": {"lr": 0.001, "task": "Adding(length=6)"},
    "epochs": [{"loss": 0.1 + 0.2, "accuracy": 1.0}, {"loss": 5e-324, "accuracy": -0.0}],
    "steps": 12,
    "sessions": [{"from_step": 0, "threads": 2}],
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda name: name != "checksum"), VALUES, max_size=4))
def test_json_is_read_as_it_was_written(value):
    """Compared by their text, which tells 0.0 from -0.0 and 1 from 1.0 and True."""
    content, verified = open_json(seal_json(value))
    assert verified
    assert json.dumps(content) == json.dumps(value)


def test_json_is_the_text_of_older_versions_and_a_last_key():
    older = json.dumps(RESULT, indent=2) + "\n"
    assert open_json(older.encode()) == (RESULT, False)
    sealed = seal_json(RESULT)
    checksum = json.loads(sealed)["checksum"]
    assert sealed.decode() == older.removesuffix("\n}\n") + f',\n  "checksum": "{checksum}"\n}}\n'


def test_layout_and_order_are_not_part_of_the_checksum():
    other = dict(reversed(json.loads(seal_json(RESULT)).items()))
    assert open_json(json.dumps(other).encode()) == (RESULT, True)


def test_what_json_changes_is_verified_as_it_is_read():
    assert open_json(seal_json({"a": (1, 2), "b": {3: 4.0}})) == ({"a": [1, 2], "b": {"3": 4.0}}, True)


def test_json_with_a_flipped_bit():
    """Such as 1e-05 with another e, and 0.30000000000000005, which is the same number."""
    sealed = seal_json(RESULT)
    accepted = [changed for changed in flips(sealed) if not refused(open_json, changed)]
    assert len(accepted) < 10
    for changed in accepted:
        value, verified = open_json(changed)
        assert verified
        assert json.dumps(value) == json.dumps(RESULT)


def test_json_that_was_cut():
    sealed = seal_json(RESULT)
    assert all(refused(open_json, part) for part in prefixes(sealed.removesuffix(b"\n")))
    assert open_json(sealed.removesuffix(b"\n")) == (RESULT, True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"3",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"loss": NaN}',
        b'{"loss": -Infinity}',
        b'{"loss": 1e999}',
        b'{"loss": 1, "loss": 2}',
        b'{"epochs": [{"loss": 1, "loss": 2}]}',
        b'{"seed": 0, "checksum": null}',
        b'{"seed": 0, "checksum": ""}',
        b'{"seed": 0, "checksun": "' + b"0f" * 32 + b'"}',
    ],
    ids=lambda content: ascii(content[:40]),
)
def test_json_that_is_refused_with_and_without_a_checksum(content):
    with pytest.raises(ChecksumError):
        open_json(content)


@pytest.mark.parametrize("depth", [100, 990, 1100, 100_000])
def test_json_of_any_depth_is_never_another_error(depth):
    """How deep Python reads depends on its version."""
    content = b'{"a":' * depth + b"1" + b"}" * depth
    assert refused(open_json, content) or depth < 100_000


def test_a_key_that_is_there_twice_is_refused_though_the_last_is_right():
    sealed = seal_json({"loss": 0.5})
    assert refused(open_json, sealed.replace(b"{", b'{"loss": 0.25,', 1))


def test_what_can_not_be_sealed():
    with pytest.raises(ValueError, match="value should have no key 'checksum'"):
        seal_json({"checksum": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        seal_json({"loss": float("nan")})
    with pytest.raises(ChecksumError):
        seal_json({"1": "a", 1: "b"})


# Checkpoints

STATE = {
    "format": 1,
    "step": 3,
    "losses": [0.5, 0.25],
    "weights": {"w": torch.arange(6.0), "b": torch.ones(2)},
}
METRICS = RunningHash(b'{"step": 1}\n').record


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def equal(first, second):
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(equal(first[name], second[name]) for name in first)
    return type(first) is type(second) and first == second


@pytest.fixture(scope="module")
def older():
    return saved(STATE)


@pytest.fixture(scope="module")
def sealed(older):
    return seal_checkpoint(older, METRICS)


def test_a_checkpoint_is_read_as_it_was_written(older, sealed):
    assert open_checkpoint(sealed) == (older, METRICS)
    assert open_checkpoint(older) == (older, None)


@pytest.mark.parametrize("entries", [1, 1000, 1_000_000])
def test_older_versions_read_a_checkpoint_with_a_trailer(tmp_path, entries):
    state = {"format": 1, "weights": torch.arange(entries)}
    path = tmp_path / "resume.pt"
    path.write_bytes(seal_checkpoint(saved(state), METRICS))
    assert equal(torch.load(path, map_location="cpu", weights_only=True), state)


def test_a_checkpoint_with_a_flipped_bit(sealed):
    assert all(refused(open_checkpoint, changed) for changed in flips(sealed))


def test_a_checkpoint_that_was_cut(older, sealed):
    """Where the trailer alone is lost, an older file is left, and it is whole."""
    accepted = [part for part in prefixes(sealed) if not refused(open_checkpoint, part)]
    assert accepted == [older]


def test_a_checkpoint_that_grew(older, sealed):
    for more in (b"\0", b"\n", b" " * TRAILER_SIZE, bytes(TRAILER_SIZE), older[-22:]):
        assert refused(open_checkpoint, sealed + more)
        assert refused(open_checkpoint, older + more)
    assert refused(open_checkpoint, sealed + sealed[-TRAILER_SIZE:])


def test_a_trailer_of_another_checkpoint_is_refused(sealed):
    other = seal_checkpoint(saved({"step": 4}), METRICS)
    assert refused(open_checkpoint, sealed[:-TRAILER_SIZE] + other[-TRAILER_SIZE:])


@pytest.mark.parametrize(
    "text", [b"{}", b'{"sha256": "0", "metrics": {}}', seal_json({"size": 1})], ids=ascii
)
def test_a_trailer_without_its_checksum_or_content_is_refused(sealed, text):
    start = len(sealed) - TRAILER_SIZE
    mark = sealed[start : sealed.index(b"{", start)]
    assert refused(open_checkpoint, sealed[:start] + (mark + text).ljust(TRAILER_SIZE))


def test_a_trailer_is_read_alone(tmp_path, older, sealed):
    path = tmp_path / "resume.pt"

    def read(content):
        path.write_bytes(content)
        return read_trailer(path)

    assert read(sealed) == METRICS
    assert read(older) is None
    start = len(sealed) - TRAILER_SIZE
    assert all(refused(read, changed) for changed in flips(sealed, range(start, len(sealed), 13)))
    assert all(refused(read, sealed[:size]) for size in range(start + 1, len(sealed), 17))
    assert all(refused(read, content) for content in (b"", b"hello", bytes(4096), b"PK\5\6"))


def test_an_older_checkpoint_with_a_flipped_bit(older):
    """Refused here or by torch.load, or nothing was changed that torch.load returns."""
    wrong = 0
    for changed in flips(older):
        if not refused(open_checkpoint, changed):
            try:
                state = torch.load(io.BytesIO(changed), map_location="cpu", weights_only=True)
            except Exception:
                continue
            wrong += not equal(state, STATE)
    assert wrong == 0


def test_an_older_checkpoint_that_was_cut(older):
    assert all(refused(open_checkpoint, part) for part in prefixes(older))


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", bytes(4096), b"PK\5\6" + bytes(18)], ids=lambda content: ascii(content[:9])
)
def test_what_is_no_checkpoint_is_refused(content):
    with pytest.raises(ChecksumError, match="is not a whole checkpoint"):
        open_checkpoint(content)


@pytest.mark.parametrize("metrics", [{}, {"size": 3}, {"size": 3, "sha256": "0" * 512}])
def test_a_record_of_something_else_is_refused(older, metrics):
    with pytest.raises(ValueError, match="metrics should be the record of a RunningHash"):
        seal_checkpoint(older, metrics)


# Weights

WEIGHTS = {
    "encoder.weight": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.ones(3, dtype=torch.bfloat16),
    "double": torch.full((2,), 0.1, dtype=torch.float64),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "empty": torch.ones(0, 3),
}
NOTE = {"run": json.dumps({"seed": 0, "epoch": 2})}


@pytest.fixture
def read(tmp_path):
    def read(content):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return open_weights(path)

    return read


def contiguous(weights):
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def named(weights):
    return dict(sorted(weights.items()))


@pytest.mark.parametrize("metadata", [NOTE, {}, {"run": "é", "by": "hand"}], ids=str)
@pytest.mark.parametrize("weights", [WEIGHTS, {}], ids=["weights", "nothing"])
def test_weights_are_read_as_they_were_written(read, weights, metadata):
    tensors, note, verified = read(seal_weights(weights, metadata))
    assert (note, verified) == (metadata, True)
    assert equal(named(tensors), named(weights))


@pytest.mark.parametrize("metadata", [NOTE, {}, None], ids=str)
def test_weights_of_older_versions_are_read(read, metadata):
    tensors, note, verified = read(save(contiguous(WEIGHTS), metadata))
    assert (note, verified) == (metadata or {}, False)
    assert equal(named(tensors), named(WEIGHTS))


def test_weights_are_a_file_that_safetensors_reads(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(seal_weights(WEIGHTS, NOTE))
    assert equal(named(load_file(path)), named(WEIGHTS))
    with safe_open(path, "pt") as file:
        assert file.metadata()["run"] == NOTE["run"]


def test_weights_with_a_flipped_bit(read):
    """All bits: of the header's size, of names, offsets and padding, of the metadata and of the numbers."""
    assert all(refused(read, changed) for changed in flips(seal_weights(WEIGHTS, NOTE)))


def test_weights_that_were_cut_or_grew(read):
    content = seal_weights(WEIGHTS, NOTE)
    assert all(refused(read, part) for part in prefixes(content))
    assert refused(read, content + b"\0")


@pytest.mark.parametrize("size", [0, 1, 7, 10**8, 2**31, 2**40, 2**63, 2**64 - 1])
def test_an_absurd_size_of_the_header_is_refused(read, size):
    for content in (seal_weights(WEIGHTS, NOTE), save(contiguous(WEIGHTS), NOTE), seal_weights({}, {})):
        with pytest.raises(ChecksumError):
            read(struct.pack("<Q", size) + content[8:])


def edited(content, edit):
    """The file with another header."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def swap(header):
    header["a"], header["b"] = header["b"], header["a"]


EDITS = {
    "names swapped": swap,
    "name": lambda header: header.update(c=header.pop("a")),
    "dtype": lambda header: header["a"].update(dtype="I32"),
    "shape": lambda header: header["a"].update(shape=[3, 2]),
    "metadata": lambda header: header["__metadata__"].update(run="{}"),
    "more metadata": lambda header: header["__metadata__"].update(by="hand"),
    "checksum's name": lambda header: header["__metadata__"].update(
        sum=header["__metadata__"].pop("checksum")
    ),
    "no checksum": lambda header: header["__metadata__"].update(checksum=""),
    "metadata of another kind": lambda header: header.update(__metadata__=[]),
    "dtype without a name": lambda header: header["a"].update(dtype="F99"),
    "huge": lambda header: header["a"].update(shape=[2**62, 2**62], data_offsets=[0, 2**63]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_another_header_is_refused(read, edit):
    content = seal_weights({"a": torch.ones(2, 3), "b": torch.zeros(2, 3)}, NOTE)
    assert read(edited(content, lambda header: None))[2]
    assert refused(read, edited(content, edit))


def test_older_weights_that_are_damaged_are_never_another_error(read):
    """Nor are they said to be verified."""
    content = save(contiguous(WEIGHTS), NOTE)
    for changed in [*flips(content, range(0, len(content), 3)), *prefixes(content)]:
        try:
            verified = read(changed)[2]
        except ChecksumError:
            continue
        assert not verified


def test_metadata_that_can_not_be_sealed():
    with pytest.raises(ValueError, match="metadata should have no key 'checksum'"):
        seal_weights(WEIGHTS, {"checksum": "1"})


# metrics.jsonl


@given(st.lists(st.binary(max_size=20), max_size=6), st.integers(0, 6))
def test_a_running_hash_is_that_of_the_whole(pieces, stop):
    whole = RunningHash(b"".join(pieces))
    resumed = RunningHash(b"".join(pieces[:stop]))
    for piece in pieces[stop:]:
        resumed.add(piece)
        assert check_metrics(b"".join(pieces), resumed.record) == b"".join(pieces)[: resumed.size]
    assert resumed.record == whole.record


def test_metrics_up_to_a_record():
    content = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n'
    record = RunningHash(content).record
    assert check_metrics(content + b'{"step": 3, "lo', record) == content
    assert check_metrics(b"anything", RunningHash().record) == b""
    for changed in flips(content):
        with pytest.raises(ChecksumError, match="checksum"):
            check_metrics(changed, record)
    for part in prefixes(content):
        with pytest.raises(ChecksumError, match=f"at least {len(content)} bytes, got {len(part)}"):
            check_metrics(part, record)


@pytest.mark.parametrize("size", [-1, 0, 4])
def test_a_record_with_another_size_is_refused(size):
    with pytest.raises(ChecksumError):
        check_metrics(b"12345", {**RunningHash(b"12345").record, "size": size})


def test_the_same_weights_have_the_same_bytes():
    """safetensors itself writes its metadata in an order that changes."""
    weights, metadata = {"b": torch.arange(3.0), "a": torch.zeros(2, 2)}, {"run": "x", "note": "y"}
    assert len({seal_weights(weights, metadata) for _ in range(20)}) == 1
