"""Progress of a run on the console: a live bar on a terminal, plain lines elsewhere, and the final summary."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from rlcluster.system.console import clock_text, say

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


def make_reporter(stream: TextIO | None = None) -> Reporter:
    stream = stream or sys.stdout
    return LiveReporter() if stream.isatty() else PlainReporter(stream)


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
        self._pending = f"{progress:4.0%} | {update_line(record)} | ETA: {self._eta.text(progress)}"
        if time.perf_counter() - self._printed_at >= PLAIN_LINE_SECONDS:
            self._print_pending()

    def _print_pending(self) -> None:
        if self._pending is not None:
            say(self._pending, stream=self._stream)
        self._printed_at = time.perf_counter()
        self._pending = None


class LiveReporter:
    """A progress bar with the current metrics, redrawn in place."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._eta = RemainingTime()
        self._bar = Progress(
            TextColumn("Training"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._task = self._bar.add_task("first update …", total=1.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, record: dict[str, Any], progress: float) -> None:
        text = f"{update_line(record)} | ETA: {self._eta.text(progress)}"
        self._bar.update(self._task, completed=progress, description=text)


class RemainingTime:
    """The ETA, from the progress since this process's first update."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def text(self, progress: float) -> str:
        now = time.perf_counter()
        if self._first is None:
            self._first = (now, progress)
        since, progress_then = self._first
        if progress >= 1:
            return "0:00:00"
        if progress <= progress_then:
            return "-"
        seconds = (now - since) * (1 - progress) / (progress - progress_then)
        return clock_text(seconds)


def update_line(record: dict[str, Any]) -> str:
    """`Update 12 | Step 49,152 | FPS: 1523 | Reward: 6.42 ± 1.23`, the reward over the last 100 episodes."""
    reward, std = record["episode_reward_recent"], record["episode_reward_recent_std"]
    reward_text = "-" if reward is None else f"{reward:.2f} ± {std:.2f}"
    position = f"Update {record['update']} | Step {record['steps_global']:,}"
    return f"{position} | FPS: {record['fps']:.0f} | Reward: {reward_text}"


def training_summary(summary: dict[str, Any], output_dir: str) -> str:
    """The TRAINING SUMMARY block at the end of a run."""
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
        f"  Initial Reward: {_number(summary['initial_reward'], '.2f')}",
        f"  Final Reward: {_number(summary['final_reward'], '.2f')}",
        f"  Best Reward: {_number(summary['best_reward'], '.2f')}",
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


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
