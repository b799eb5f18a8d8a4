"""Frames of play, written to an mp4 file or drawn in the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
from av import VideoFrame, VideoStream
from av.container import OutputContainer
from numpy.typing import NDArray

from rlcluster.reports.output_paths import check_output_file
from rlcluster.system.atomic_file import StorageError
from rlcluster.system.errors import UserError

VIDEO_SUFFIXES = (".mp4",)
FRAMES_PER_SECOND = 15  # as in Procgen
MIN_SIDE = 256  # smaller frames are enlarged, pixel by pixel
ENCODING = {
    "preset": "veryfast",
    "crf": "25",
}  # 1000 frames of 512 x 512: 1.5 s, 0.88 MB; preset medium: 3.2 s, 0.90 MB


class VideoFile:
    """An mp4 file (H.264), written frame by frame with PyAV."""

    def __init__(self, path: Path) -> None:
        check_output_file("--video", path, VIDEO_SUFFIXES)
        self.path = path
        self._container: OutputContainer | None = None
        self._stream: VideoStream

    def add(self, frame: NDArray[np.uint8]) -> None:
        frame = _even(_enlarge(frame))
        with self._storage_errors():
            if self._container is None:
                self._open(*frame.shape[:2])
            self._encode(VideoFrame.from_ndarray(frame, format="rgb24"))

    def close(self) -> None:
        if self._container is not None:
            with self._storage_errors():
                self._encode(None)  # flush the encoder
                self._container.close()

    def _open(self, height: int, width: int) -> None:
        self._container = av.open(str(self.path), "w")
        self._stream = self._container.add_stream("libx264", rate=FRAMES_PER_SECOND, options=ENCODING)
        self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        self._stream.thread_type = "FRAME"  # slice threading, PyAV's default, makes files 3 % larger

    def _encode(self, frame: VideoFrame | None) -> None:
        assert self._container is not None
        self._container.mux(self._stream.encode(frame))

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._container = None
            raise StorageError(f"--video {self.path}", error) from None


class Screen:
    """Draws frames in the terminal: two pixels per character cell, with upper half blocks in 24-bit colour."""

    def __init__(self) -> None:
        if not sys.stdout.isatty():
            raise UserError("--render: the output is not a terminal; use --video FILE.mp4")
        self._started = False
        self._shown_at = 0.0

    def show(self, frame: NDArray[np.uint8]) -> None:
        columns, rows = shutil.get_terminal_size()
        side = max(8, min(columns, 2 * (rows - 2), 128))
        height, width = frame.shape[:2]
        small = frame[np.arange(side) * height // side][:, np.arange(side) * width // side]
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
        time.sleep(max(0.0, self._shown_at + 1 / FRAMES_PER_SECOND - time.perf_counter()))  # limit the frame rate
        self._shown_at = time.perf_counter()


def _enlarge(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    factor = -(-MIN_SIDE // min(frame.shape[:2]))
    return frame.repeat(factor, 0).repeat(factor, 1) if factor > 1 else frame


def _even(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """H.264 stores colour per block of 2 x 2 pixels: an odd last row or column is repeated."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), "edge") if height % 2 or width % 2 else frame
