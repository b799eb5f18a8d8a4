"""Short clips of an agent at play, small enough to stand inside a page."""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

SECONDS = 12
WIDTH = 192  # pixels
TIMEOUT_SECONDS = 60.0
QUALITIES = (28, 34, 40, 46)  # H.264's constant rate factor: the first that is small enough


def choose(clips: Sequence[Path]) -> Path | None:
    """Of several clips of a run, one of unseen levels."""
    return next((clip for clip in clips if clip.stem.endswith("_test")), next(iter(clips), None))


def shrink(clip: Path, max_bytes: int) -> bytes | None:
    """The first seconds of a video as a small mp4; None if it is no video, or cannot be made small enough."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, "clip.mp4")
        for quality in QUALITIES:
            if not _runs_well(_command(clip, small, quality)):
                return None
            if small.stat().st_size <= max_bytes:
                return small.read_bytes()
    return None


def _runs_well(command: list[str]) -> bool:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _command(clip: Path, small: Path, quality: int) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it still imports the deprecated pkg_resources
        import imageio_ffmpeg

    return [
        *(
            imageio_ffmpeg.get_ffmpeg_exe(),
            "-nostdin",
            "-y",
            "-loglevel",
            "error",
            "-t",
            str(SECONDS),
            "-i",
            str(clip.resolve()),
        ),
        *("-an", "-vf", f"scale={WIDTH}:-2:flags=area", "-c:v", "libx264", "-preset", "slow", "-crf", str(quality)),
        *("-pix_fmt", "yuv420p", "-movflags", "+faststart", str(small)),
    ]
