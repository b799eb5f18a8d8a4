"""Output never ends a run: closed streams, full devices, readers that are gone, encodings that lack characters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlcluster.system.console import say

PROGRAM = """
import os, sys
from rlcluster.system.console import protect_streams, say
if sys.argv[1] == "protected":
    protect_streams()
for k in range(3):
    say("a line ± 1")
    say("a complaint ± 1", stream=sys.stderr)
if sys.argv[1] == "protected":
    print("x" * 100_000)
    sys.stdout.isatty(), sys.stderr.flush()
with open(os.devnull) as file:
    os.write(int(sys.argv[2]), b"the end:%d" % file.fileno())
"""


@pytest.fixture(params=["protected", "library"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def outcome(kind: str, redirection: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """What the program reports through a pipe of its own."""
    reader, writer = os.pipe()
    line = f'exec "$0" -c "$PROGRAM" {kind} {writer} {redirection}'
    variables = {**os.environ, "PROGRAM": PROGRAM, **environment}
    result = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable], capture_output=True, pass_fds=[writer], env=variables, check=False
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read().startswith(b"the end:"), result
    assert b"Traceback" not in result.stderr
    assert result.returncode == 0, result
    return result


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
def test_a_closed_stream_and_a_full_device_are_no_error(kind: str, redirection: str) -> None:
    outcome(kind, redirection)


def test_the_number_of_a_closed_stream_is_not_given_to_the_next_file() -> None:
    reader, writer = os.pipe()
    line = f'exec "$0" -c "$PROGRAM" protected {writer} >&- 2>&-'
    variables = {**os.environ, "PROGRAM": PROGRAM}
    subprocess.run(["/bin/sh", "-c", line, sys.executable], pass_fds=[writer], env=variables, check=True)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert int(pipe.read().rpartition(b":")[2]) > 2


def test_characters_that_the_encoding_lacks_are_replaced(kind: str) -> None:
    result = outcome(kind, "", PYTHONIOENCODING="ascii")
    assert result.stdout.startswith(b"a line ? 1\n" * 3)


def test_a_reader_that_is_gone_is_no_error(kind: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, "2"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert result.returncode == 0
    assert b"the end:" in result.stderr


def test_without_a_stream_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    say("nobody hears this")
