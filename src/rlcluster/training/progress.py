"""Progress of a run on the console: the live view on a terminal, plain lines elsewhere, and the final summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rlcluster.monitor.history import History, RemainingTime
from rlcluster.monitor.screen import Screen
from rlcluster.monitor.view import Symbols, view
from rlcluster.runs.fields import WINDOW
from rlcluster.runs.status import last_saved
from rlcluster.system.console import clock_text, counted, say
from rlcluster.system.errors import reason_of

PLAIN_LINE_SECONDS = 10.0
WIDTH = 70


class Reporter(Protocol):
    """Receives the updates of a training loop."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def update(self, record: dict[str, Any], progress: float) -> None:
        """`record` is the logged line, `progress` the fraction of the budget spent."""

    def conclude(self, is_finished: bool) -> None:
        """The last checkpoint is saved: the run is finished, or was stopped and can be resumed."""


class SilentReporter:
    """For every rank but the first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def update(self, record: dict[str, Any], progress: float) -> None:
        pass

    def conclude(self, is_finished: bool) -> None:
        pass


def make_reporter(title: str, run: Path, stream: TextIO | None = None) -> Reporter:
    stream = stream or sys.stdout
    return LiveReporter(title, run) if stream.isatty() else PlainReporter(stream)


class PlainReporter:
    """One line every ten seconds, and one each for the first and the last update."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._printed_at = float("-inf")
        self._pending: str | None = None
        self._eta = RemainingTime()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._print_pending()

    def update(self, record: dict[str, Any], progress: float) -> None:
        remaining = self._eta.seconds(record["elapsed_seconds"], progress)
        eta = "-" if remaining is None else clock_text(remaining)
        self._pending = f"{progress:4.0%} | {update_line(record)} | ETA: {eta}"
        if time.perf_counter() - self._printed_at >= PLAIN_LINE_SECONDS:
            self._print_pending()

    def conclude(self, is_finished: bool) -> None:
        self._print_pending()

    def _print_pending(self) -> None:
        if self._pending is not None:
            say(self._pending, stream=self._stream)
        self._printed_at = time.perf_counter()
        self._pending = None


class LiveReporter:
    """The view of `monitor`, redrawn in place; its last frame says how the run has ended."""

    def __init__(self, title: str, run: Path) -> None:
        self._history, self._run = History(title), run
        self._status = "running"
        self._screen = Screen(self._draw)

    def __enter__(self) -> Self:
        self._screen.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._status = f"failed: {reason_of(error)}"
        self._screen.__exit__(kind, error, traceback)

    def update(self, record: dict[str, Any], progress: float) -> None:
        self._history.add(record, progress)

    def conclude(self, is_finished: bool) -> None:
        self._status = "finished" if is_finished else "preempted"

    def _draw(self, width: int, height: int, symbols: Symbols) -> Sequence[str]:
        snapshot = self._history.snapshot(self._status, last_saved(self._run))
        if self._status != "running":
            snapshot = snapshot.ended(self._status == "finished")
        return view(snapshot, width, height, symbols)


def update_line(record: dict[str, Any]) -> str:
    """`Update 12 | Step 49,152 | FPS: 1523 | Reward: 6.42 ± 1.23`, the reward over the last 100 episodes."""
    reward, std = record["episode_reward_recent"], record["episode_reward_recent_std"]
    reward_text = "-" if reward is None else f"{reward:.2f} ± {std:.2f}"
    position = f"Update {record['update']} | Step {record['steps_global']:,}"
    return f"{position} | FPS: {record['fps']:.0f} | Reward: {reward_text}"


def training_summary(summary: dict[str, Any], output_dir: str) -> str:
    """The TRAINING SUMMARY block at the end of a run."""
    window = min(WINDOW, summary.get("total_episodes", WINDOW))  # earlier versions did not say
    episodes = counted(window, "episode")
    lines = [
        "=" * WIDTH,
        "TRAINING SUMMARY",
        "=" * WIDTH,
        f"Duration: {_hours(summary['duration_seconds'])}",
        f"Total Timesteps: {summary['total_timesteps']:,}",
        f"Total Updates: {summary['total_updates']:,}",
        f"Average FPS: {_number(summary['average_fps'], ',.0f')}",
        f"Final FPS: {_number(summary['final_fps'], ',.0f')}",
        "",
        "Performance:",
        f"  Initial Reward: {_reward(summary['initial_reward'], f'first {episodes}')}",
        f"  Final Reward: {_reward(summary['final_reward'], f'last {episodes}')}",
        f"  Best Reward: {_reward(summary['best_reward'], f'best {window} in a row')}",
        "",
        "Resource Usage:",
        f"  Peak Memory: {summary['peak_memory_gb']:.2f} GB",
        "",
        f"Results saved to: {output_dir}",
        "=" * WIDTH,
    ]
    return "\n".join(lines)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} hours" if seconds >= 360 else f"{seconds:.1f} seconds"


def _reward(mean: float | None, episodes: str) -> str:
    return "-" if mean is None else f"{mean:.2f} ({episodes})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
