"""The report of a suite: the comparison of all cells that have a run, with what failed and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rlcluster.experiments.suite_outcomes import Outcome
from rlcluster.experiments.suite_plan import Cell, Suite
from rlcluster.reports.compare import Outputs, Shown, show, write
from rlcluster.reports.comparison import Comparison, Options, compare
from rlcluster.reports.reference import ranges
from rlcluster.runs.reader import RecordedRun, read_run
from rlcluster.system.console import counted, say, warn
from rlcluster.system.errors import UserError

REFRESH_SECONDS = 30  # between reports of `suite --watch`
FORMATS = (".png", ".csv", ".md", ".tex")  # next to page, text and data


class SuiteReport(NamedTuple):
    """The report of a suite, and where it is written."""

    suite: Suite
    folder: Path
    chosen: Collection[Cell]  # a missing run of these is mentioned

    @property
    def outputs(self) -> Outputs:
        return Outputs.inside(self.folder, FORMATS)

    def show(self, failed: Iterable[Outcome], notes: Sequence[str]) -> None:
        """Writes it and prints it."""
        comparison = self.write(failed, notes)
        if comparison is None:
            warn("no report: no cell has a readable run")
            return
        show(comparison)
        say(f"Report: {self.outputs.page}")

    def write(self, failed: Iterable[Outcome], notes: Sequence[str], is_running: bool = False) -> Comparison | None:
        """`notes` come before the comparison's own warnings. None if no cell has logged an update yet. The page of a
        running suite reloads itself.
        """
        runs, missing = self._readable_runs()
        if not runs:
            return None
        comparison = self._compare(runs)
        failures = {**comparison.failures, **{outcome.name: outcome.error or "" for outcome in failed}}
        unstarted = [name for name in missing if name not in failures]
        absent = [f"not in this report, without a logged update: {', '.join(unstarted)}"] if unstarted else []
        warnings = [*absent, *notes, *comparison.warnings]
        comparison = comparison._replace(failures=failures, warnings=warnings)
        note = f"{len(runs)} of {counted(len(self.suite.cells), 'cell')}{', still running' if is_running else ''}"
        shown = Shown(note=note, refresh_seconds=REFRESH_SECONDS if is_running else None)
        write(comparison, self.outputs, f"Suite {self.suite.name}", shown)
        return comparison

    def _compare(self, runs: list[RecordedRun]) -> Comparison:
        plan = self.suite.plan
        threshold = plan.budget.score if len(plan.games) == 1 else None
        options = Options(ranges(plan.score_ranges.items()), threshold, with_reference=plan.reference)
        names, methods = [run.path.name for run in runs], {cell.name: cell.method for cell in self.suite.cells}
        return compare(runs, names, options, [methods[name] for name in names])

    def _readable_runs(self) -> tuple[list[RecordedRun], list[str]]:
        """The runs with a logged update, and the chosen cells without one."""
        runs, missing = [], []
        for cell in self.suite.cells:
            try:
                runs.append(read_run(self.folder / "runs" / cell.name))
            except UserError:
                if cell in self.chosen:
                    missing.append(cell.name)
        return runs, missing
