"""Moving pictures of play: an mp4 file, or the terminal itself."""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcluster.system.errors import EXIT_STORAGE, UserError

FRAMES_PER_SECOND = 15  # Procgen's own pace
MIN_SIDE = 256  # smaller pictures are enlarged, pixel by pixel
ENCODING = ("-preset", "veryfast")  # 1000 pictures of 512 x 512: 5 s and 0.98 MB; x264's own default: 11 s and 0.99 MB


class VideoFile:
    """An mp4 (H.264) of the pictures that are added, written by the ffmpeg that imageio-ffmpeg brings."""

    def __init__(self, path: Path) -> None:
        if path.suffix != ".mp4":
            raise UserError(f"--video {path}: the name should end in .mp4")
        if not path.resolve().parent.is_dir():
            raise UserError(f"--video {path}: there is no directory {path.resolve().parent}", EXIT_STORAGE)
        self.path = path
        self._writer: Any = None

    def add(self, picture: NDArray[np.uint8]) -> None:
        picture = _enlarge(picture)
        if self._writer is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # it still imports the deprecated pkg_resources
                import imageio_ffmpeg

            height, width = picture.shape[:2]
            self._writer = imageio_ffmpeg.write_frames(
                str(self.path), (width, height), fps=FRAMES_PER_SECOND, output_params=list(ENCODING)
            )
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(picture))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Screen:
    """The terminal as a screen: two pixels in each character cell, by the upper half block and 24-bit colours."""

    def __init__(self) -> None:
        if not sys.stdout.isatty():
            raise UserError(
                "--render: the output is not a terminal, so there is nowhere to show it; use --video FILE.mp4"
            )
        self._started = False
        self._shown_at = 0.0

    def show(self, picture: NDArray[np.uint8]) -> None:
        columns, rows = shutil.get_terminal_size()
        side = max(8, min(columns, 2 * (rows - 2), 128))
        height, width = picture.shape[:2]
        small = picture[np.arange(side) * height // side][:, np.arange(side) * width // side]
        lines = [
            "".join(
                f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀"
                for a, b in zip(upper.tolist(), lower.tolist(), strict=True)
            )
            for upper, lower in zip(small[0 : side - 1 : 2], small[1::2], strict=True)
        ]
        start = "\x1b[H" if self._started else "\x1b[2J\x1b[H"
        self._started = True
        sys.stdout.write(start + "\x1b[0m\n".join(lines) + "\x1b[0m\n")
        sys.stdout.flush()
        time.sleep(max(0.0, self._shown_at + 1 / FRAMES_PER_SECOND - time.perf_counter()))  # no faster than the game
        self._shown_at = time.perf_counter()


def _enlarge(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    factor = -(-MIN_SIDE // min(picture.shape[:2]))
    return picture.repeat(factor, 0).repeat(factor, 1) if factor > 1 else picture
