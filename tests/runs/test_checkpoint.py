"""One checkpoint on disk: what goes in comes out, and nothing damaged, foreign or hostile does."""

import errno
import hashlib
import os
import pickle
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rlcluster.runs.checkpoint import (
    FORMAT,
    CheckpointError,
    content_hash,
    load_checkpoint,
    save_checkpoint,
    write_atomically,
)
from rlcluster.system.errors import EXIT_STORAGE, UserError

from conftest import disk_full_after

CONTENT = {
    "learner": {
        "parameters": {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.tensor([0.5, -1.5])},
        "optimizer": {"step": torch.tensor(3.0), "momentum": torch.zeros(0, 3)},
        "updates": 7,
        "steps_global": 2**40,
    },
    "settings": "env:\n  name: CartPole-v1 ±\n",
    "elapsed_seconds": 1.5,
    "best_reward": None,
    "is_done": False,
    "states": ["", torch.tensor([1, 255], dtype=torch.uint8), (1, 2.0)],
    "nothing": {},
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run_step_7.pt"
    save_checkpoint(path, CONTENT)
    return path


def error_of(path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable(), message  # so it is one line, and no colours of another program
    assert caught.value.exit_code == 2
    return message


def assert_same(left: object, right: object) -> None:
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert type(left) is type(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    else:
        assert type(left) is type(right)
        assert left == right


# There and back


def test_tensors_numbers_text_and_none_come_back_as_they_were(path):
    assert_same(load_checkpoint(path).content, CONTENT)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str
)
def test_tensors_of_every_kind_and_shape_come_back(tmp_path, dtype):
    tensors = [torch.ones(shape).to(dtype) for shape in ((), (0,), (3,), (2, 0, 4), (2, 3, 4))]
    save_checkpoint(tmp_path / "a.pt", {"tensors": tensors})
    assert_same(load_checkpoint(tmp_path / "a.pt").content, {"tensors": tensors})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0, 5e-324, 2**100, -1, True])
def test_numbers_come_back_to_the_last_bit(tmp_path, number):
    save_checkpoint(tmp_path / "a.pt", {"number": number})
    assert repr(load_checkpoint(tmp_path / "a.pt").content["number"]) == repr(number)


def test_a_checkpoint_replaces_the_one_of_the_same_name(path):
    save_checkpoint(path, {"updates": 8})
    assert load_checkpoint(path).content == {"updates": 8}
    assert [file.name for file in path.parent.iterdir()] == ["run_step_7.pt"]


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"bytes", 1j, object(), torch.float32, np.ones(2), np.int64(3), np.float64(1.5), Path("x"), Colour.RED],
    ids=lambda value: type(value).__name__,
)
def test_other_types_are_refused_when_saving_for_they_could_not_be_loaded(tmp_path, value):
    with pytest.raises(TypeError, match="a checkpoint holds tensors, numbers and text, not"):
        save_checkpoint(tmp_path / "a.pt", {"deep": [{"inside": value}]})
    assert list(tmp_path.iterdir()) == []


# Damaged, foreign and hostile files


def test_a_file_that_is_cut_to_any_length_is_damaged(path):
    """Every length: torch reports some of them by the exception of a broken disk (EINVAL)."""
    data = path.read_bytes()
    for length in {*range(0, len(data), 7), *range(100), *range(len(data) - 100, len(data))}:
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(path)
        assert caught.value.is_damaged, (length, str(caught.value))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_an_error_of_the_storage_is_not_damage(path, number, monkeypatch):
    def fail(self: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(CheckpointError, match=f"cannot be read .{os.strerror(number)}.") as caught:
        load_checkpoint(path)
    assert not caught.value.is_damaged


@pytest.mark.slow
def test_a_whole_file_that_does_not_fit_into_memory_is_not_damage(path):
    save_checkpoint(path, {"large": torch.zeros(20_000_000)})
    script = (
        "import resource, sys, torch; from pathlib import Path\n"
        "from rlcluster.runs.checkpoint import CheckpointError, load_checkpoint\n"
        "data = Path(sys.argv[1]).read_bytes()\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 20_000_000, -1))\n"
        "try: load_checkpoint(Path(sys.argv[1]), data)\n"
        "except CheckpointError as error: print(error.is_damaged, error)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert result.stdout.startswith(f"False {path}: does not fit into memory"), result


def test_a_flipped_bit_inside_a_tensor_is_refused(path):
    data = bytearray(path.read_bytes())
    weight = CONTENT["learner"]["parameters"]["weight"].numpy().tobytes()
    position = bytes(data).index(weight) + 5
    data[position] ^= 1
    path.write_bytes(data)
    error_of(path)


class Edit(NamedTuple):
    """A place, as a share of the file, and what is done there."""

    kind: str
    place: float
    data: bytes


EDITS = st.builds(
    Edit,
    st.sampled_from(["cut off the rest", "flip", "insert", "remove", "overwrite"]),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=40),
)


def edited(data: bytes, edit: Edit) -> bytes:
    begin, size = int(edit.place * len(data)), len(edit.data)
    if edit.kind == "flip":
        return data[:begin] + bytes(byte ^ edit.data[0] for byte in data[begin : begin + 1]) + data[begin + 1 :]
    replacement = edit.data if edit.kind in ("insert", "overwrite") else b""
    rest = {"cut off the rest": b"", "insert": data[begin:]}.get(edit.kind, data[begin + size :])
    return data[:begin] + replacement + rest


@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:TypedStorage is deprecated", "ignore:Defining")
@hypothesis_settings(deadline=None, max_examples=300)
@given(edits=st.lists(EDITS, min_size=1, max_size=3))
def test_a_file_changed_anywhere_in_any_way_is_damaged_or_as_before(tmp_path_factory, edits):
    """Never another exception, and never another content."""
    whole, changed = tmp_path_factory.getbasetemp() / "whole.pt", tmp_path_factory.getbasetemp() / "changed.pt"
    if not whole.exists():
        save_checkpoint(whole, CONTENT)
    data = whole.read_bytes()
    for edit in edits:
        data = edited(data, edit)
    changed.write_bytes(data)
    try:
        loaded = load_checkpoint(changed)
    except CheckpointError as error:
        assert error.is_damaged, str(error)
        return
    assert_same(loaded.content, CONTENT)


def test_a_file_whose_content_does_not_match_its_hash_is_refused(path):
    torch.save({"format": FORMAT, "sha256": content_hash({"updates": 7}), "content": {"updates": 8}}, path)
    assert "is damaged (its content does not match its hash)" in error_of(path)


@pytest.mark.parametrize(
    "foreign",
    [
        {"state_dict": {"weight": torch.ones(2)}},
        {"format": "rlcluster checkpoint 999", "sha256": content_hash({}), "content": {}},
        {"format": FORMAT, "sha256": content_hash([]), "content": []},
        {"format": FORMAT},
        torch.ones(2),
        [1, 2],
        None,
    ],
    ids=["another program", "another version", "no dict", "nothing", "a tensor", "a list", "None"],
)
def test_a_torch_file_of_another_kind_is_refused(path, foreign):
    torch.save(foreign, path)
    assert "is not a checkpoint of rlcluster" in error_of(path)


def self_containing() -> dict[str, object]:
    content: dict[str, object] = {}
    content["itself"] = content
    return content


@pytest.mark.parametrize(
    "content",
    [{"a": torch.float32}, {"a": b"bytes"}, {1: "a", "b": 2}, {"a": torch.eye(2).to_sparse()}, self_containing()],
    ids=["a dtype", "bytes", "keys of two types", "a sparse tensor", "itself"],
)
def test_a_file_in_our_format_with_content_that_we_never_write_is_refused(path, content):
    torch.save({"format": FORMAT, "sha256": "0" * 64, "content": content}, path)
    error_of(path)


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", ["pickle", "torch", "torch legacy", "inside a checkpoint"])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(tmp_path, kind):
    path, crater = tmp_path / "bomb.pt", tmp_path / "crater"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(crater)))
    elif kind == "inside a checkpoint":
        torch.save({"format": FORMAT, "sha256": "0" * 64, "content": {"bomb": Bomb(crater)}}, path)
    else:
        torch.save(Bomb(crater), path, _use_new_zipfile_serialization=kind == "torch")
    error_of(path)
    assert not crater.exists()


@pytest.mark.parametrize("value", [np.ones(2), np.float64(1.5), Path("x")], ids=["array", "number", "path"])
def test_a_torch_file_that_needs_other_code_is_refused_without_advice_to_trust_it(path, value):
    torch.save({"model": value}, path)
    assert "can still be loaded" not in error_of(path)


@pytest.mark.parametrize("data", [b"", b"\x00", b"text", b"\x80\x02", b"PK\x03\x04" + b"\x00" * 100, b"\xff" * 1000])
def test_a_file_that_is_no_torch_file_is_refused(path, data):
    path.write_bytes(data)
    assert "is not a whole checkpoint" in error_of(path)


def test_a_missing_file_is_refused(tmp_path):
    path = tmp_path / "missing.pt"
    expected = f"{path}: cannot be read (No such file or directory); give another checkpoint of the run"
    assert error_of(path) == expected


def test_a_directory_is_refused(tmp_path):
    assert "cannot be read (Is a directory)" in error_of(tmp_path)


# The hash


def test_the_hash_is_that_of_the_written_form():
    assert content_hash({"a": 1}) == hashlib.sha256(b"{1str 'a';int 1;").hexdigest()
    tensor = torch.tensor([1, 2], dtype=torch.uint8)
    assert (
        content_hash([tensor, None]) == hashlib.sha256(b"[2tensor torch.uint8 [2] \x01\x02NoneType None;").hexdigest()
    )


DIFFERENT_CONTENTS = {
    "a tensor": {"a": torch.tensor([1.0, 2.0])},
    "another value": {"a": torch.tensor([1.0, 3.0])},
    "another order": {"a": torch.tensor([2.0, 1.0])},
    "another type": {"a": torch.tensor([1, 2])},
    "a narrower type": {"a": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)},
    "another shape": {"a": torch.tensor([[1.0, 2.0]])},
    "another key": {"b": torch.tensor([1.0, 2.0])},
    "a key more": {"a": torch.tensor([1.0, 2.0]), "b": None},
    "a list": {"a": [1.0, 2.0]},
    "a nested list": {"a": [[1.0], 2.0]},
    "nothing": {},
    "an empty tensor": {"a": torch.zeros(0)},
    "an empty matrix": {"a": torch.zeros(0, 2)},
    "zero": {"a": 0},
    "minus zero": {"a": -0.0},
    "zero as a float": {"a": 0.0},
    "zero as text": {"a": "0"},
    "false": {"a": False},
    "none": {"a": None},
    "empty text": {"a": ""},
    "a key inside": {"a": {"a": 0}},
}


def test_the_hash_depends_on_keys_values_types_and_shapes():
    hashes = {name: content_hash(content) for name, content in DIFFERENT_CONTENTS.items()}
    assert len(set(hashes.values())) == len(hashes)


def test_the_hash_does_not_depend_on_the_layout_in_memory():
    plain = torch.arange(24.0).reshape(1, 2, 3, 4)
    layouts = [
        plain.contiguous(memory_format=torch.channels_last),
        plain.transpose(2, 3).contiguous().transpose(2, 3),
        torch.cat([torch.zeros(1, 2, 3, 4), plain])[1:],
        torch.stack([plain, plain], -1)[..., 0],
        plain.clone().requires_grad_(),
    ]
    assert {content_hash({"a": layout}) for layout in layouts} == {content_hash({"a": plain})}


def test_the_hash_does_not_depend_on_the_order_of_keys():
    assert content_hash({"a": 1, "b": [2]}) == content_hash({"b": [2], "a": 1})


# Writing


def test_a_full_disk_leaves_the_old_content_and_no_temporary_file(path):
    old = path.read_bytes()
    with disk_full_after(1000), pytest.raises(UserError, match="cannot be written") as caught:
        save_checkpoint(path, {"large": torch.zeros(10_000)})
    assert caught.value.exit_code == EXIT_STORAGE == 74
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == old
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_full_disk_leaves_no_file_where_there_was_none(tmp_path):
    with disk_full_after(1000), pytest.raises(UserError, match="cannot be written"):
        write_atomically(tmp_path / "new", b"x" * 10_000)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_a_storage_error(tmp_path):
    with pytest.raises(UserError, match=r"cannot be written \(No such file or directory\)") as caught:
        write_atomically(tmp_path / "missing" / "file", b"x")
    assert caught.value.exit_code == EXIT_STORAGE


def test_a_file_in_place_of_the_folder_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\)"):
        write_atomically(tmp_path / "file" / "inside", b"x")


def test_a_directory_in_place_of_the_file_stays_and_no_temporary_file_is_left(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match=r"cannot be written \(Is a directory\)"):
        write_atomically(tmp_path / "taken", b"x")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_what_is_written_is_what_is_read(tmp_path):
    write_atomically(tmp_path / "file", b"old")
    write_atomically(tmp_path / "file", memoryview(b"new"))
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
