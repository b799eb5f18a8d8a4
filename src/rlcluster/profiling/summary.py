"""The console's summary of a profile."""

from __future__ import annotations

from rlcluster.profiling.analysis import ProcessProfile
from rlcluster.profiling.findings import Findings
from rlcluster.system.console import counted
from rlcluster.system.phases import PHASES

SHOWN_SHARE = 0.01  # phases below this share of their process are left to the page
SHOWN_PROCESSES = 4


def summary_text(findings: Findings) -> str:
    """The first sentence, how time splits, and the phases of the first processes."""
    profile, figures = findings.profile, findings.figures()
    names = profile.ranks[0].split
    parts = ", ".join(f"{name} {profile.split_share(name):.0%}" for name in names)
    lines = [
        findings.sentence(),
        f"{counted(findings.facts.updates, 'update')} in {profile.seconds:.1f} s, "
        f"{figures['steps_per_second']:,.0f} steps/s; time: {parts}",
    ]
    for process in profile.processes[:SHOWN_PROCESSES]:
        lines += ["", f"{process.name} ({process.host}), {process.attributed:.1%} of its time has a name"]
        lines += _tree(process, findings.facts.updates)
    hidden = len(profile.processes) - SHOWN_PROCESSES
    return "\n".join([*lines, f"... and {counted(hidden, 'more process')}: see the page"] if hidden > 0 else lines)


def _tree(process: ProcessProfile, updates: int) -> list[str]:
    rows = []
    for node in process.nodes:
        if node.seconds < SHOWN_SHARE * process.seconds:
            continue
        name = "  " * (len(node.path) - 1) + node.name
        milliseconds = 1000 * node.seconds / (updates or 1)
        share = node.seconds / process.seconds
        rows.append(f"  {name:34}{milliseconds:10.1f} ms/update{share:7.1%}  {PHASES[node.name].kind.value}")
    return rows
