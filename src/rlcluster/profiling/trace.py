"""The trace of a profiled run in Chrome's format: open it in chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

from typing import Any

from rlcluster.profiling.analysis import ProcessProfile, Profile


def trace_events(profile: Profile) -> dict[str, Any]:
    """One track per process. Times are microseconds since the first process began; the phases of a track nest."""
    begin = min(process.begin for process in profile.processes)
    events: list[dict[str, Any]] = []
    for number, process in enumerate(profile.processes):
        name = f"{process.name} ({process.host})"
        for key, value in (("name", name), ("sort_index", number)):
            events.append({"name": f"process_{key}", "ph": "M", "pid": number, "tid": 0, "args": {key: value}})
        events += _phases(process, number, 1e6 * (process.begin - begin))
        events += _memory(process, number, begin)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _phases(process: ProcessProfile, number: int, offset: float) -> list[dict[str, Any]]:
    return [
        {
            "name": process.paths[int(path)][-1],
            "ph": "X",
            "pid": number,
            "tid": 0,
            "ts": round(offset + start, 1),
            "dur": round(end - start, 1),
        }
        for path, start, end in process.events
    ]


def _memory(process: ProcessProfile, number: int, begin: float) -> list[dict[str, Any]]:
    return [
        {
            "name": "memory",
            "ph": "C",
            "pid": number,
            "tid": 0,
            "ts": round(1e6 * (at - begin), 1),
            "args": {"GB": round(gigabytes, 4)},
        }
        for at, gigabytes, _ in process.memory
    ]
