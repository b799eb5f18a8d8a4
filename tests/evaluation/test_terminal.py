"""Output on a (pseudo-)terminal."""

from __future__ import annotations

import os
import pty
import signal
from pathlib import Path

import pytest

from conftest import CARTPOLE, COINRUN, background, command, flags


def on_a_terminal(*arguments: str | Path, enough: str | None = None) -> str:
    """Runs the command on a pseudo-terminal and returns its output; sends Ctrl-C once the text `enough` appears."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    # Restore the default: a shell's background jobs ignore SIGINT, and the command would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    streams = {"stdout": theirs, "stderr": theirs, "stdin": theirs, "text": False}
    process = background(command(*arguments), env=environment, **streams)
    signal.signal(signal.SIGINT, before)
    os.close(theirs)
    written = bytearray()
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal is closed when the process ends
            break
        if not part:
            break
        written += part
        if enough is not None and enough.encode() in written:
            process.send_signal(signal.SIGINT)
            enough = None
    os.close(ours)
    process.wait()
    return written.decode(errors="replace")


def test_a_live_bar_shows_progress_speed_reward_and_remaining_time(tmp_path: Path) -> None:
    options = {**CARTPOLE, "--n-minibatches": 2, "--total-updates": 20}
    text = on_a_terminal("train", "ppo", "--output-dir", tmp_path / "run", *flags(options))
    for part in (
        "PPO_Sequential on CartPole-v1   running",
        "100%",
        "steps 2,560   steps/s ",
        "update 20",
        "reward ",
        " ± ",
        "ETA 0:00:00",
        "TRAINING SUMMARY",
    ):
        assert part in text
    assert "\x1b[" in text
    last_frame = text[text.rindex("PPO_Sequential on CartPole-v1") :]
    assert last_frame.startswith("PPO_Sequential on CartPole-v1   finished")
    assert "checkpoint step 2,560, 0:00:0" in last_frame


@pytest.mark.slow
def test_rendering_draws_the_game_in_the_terminal(tmp_path: Path) -> None:
    options = {**COINRUN, "--n-minibatches": 2, "--total-updates": 1}
    on_a_terminal("train", "ppo", "--output-dir", tmp_path / "run", *flags(options))
    arguments = ("evaluate", "--checkpoint", tmp_path / "run", "--num-episodes", "1", "--render")
    text = on_a_terminal(*arguments, enough="\x1b[0m\r\n\x1b[H\x1b[38;2;")  # the second frame, drawn over the first
    assert text.count("▀") > 1000
