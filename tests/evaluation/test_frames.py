"""Videos: every added frame, at the right size and frame rate."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from rlcluster import environments
from rlcluster.evaluation.frames import VideoFile
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import EXIT_STORAGE, UserError

from conftest import disk_full_after

RED, BLUE = (200, 30, 30), (30, 30, 200)
CLOSE = 12  # of 255: H.264 is lossy


def plain(height: int, width: int, colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    return np.full((height, width, 3), colour, np.uint8)


def write(path: Path, frames: list[NDArray[np.uint8]]) -> Path:
    video = VideoFile(path)
    for frame in frames:
        video.add(frame)
    video.close()
    return path


def read(path: Path) -> list[NDArray[np.uint8]]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_video_holds_every_frame_in_order_at_fifteen_per_second(tmp_path: Path) -> None:
    path = write(tmp_path / "play.mp4", [plain(256, 320, RED)] * 20 + [plain(256, 320, BLUE)] * 10)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")  # what every browser plays
        assert (stream.width, stream.height, stream.average_rate) == (320, 256, 15)
        assert float(stream.duration * stream.time_base) == 30 / 15
    frames = read(path)
    assert len(frames) == 30
    for k, frame in enumerate(frames):
        assert np.abs(frame.astype(int) - (RED if k < 20 else BLUE)).max() <= CLOSE, k


def test_a_small_frame_is_enlarged_pixel_by_pixel_and_an_odd_one_becomes_even(tmp_path: Path) -> None:
    half = np.concatenate([plain(64, 32, RED), plain(64, 32, BLUE)], 1)  # [64, 64, 3]
    (frame,) = read(write(tmp_path / "small.mp4", [half]))
    assert frame.shape == (256, 256, 3)
    assert np.abs(frame[:, :120].astype(int) - RED).max() <= CLOSE
    assert np.abs(frame[:, 136:].astype(int) - BLUE).max() <= CLOSE
    (frame,) = read(write(tmp_path / "odd.mp4", [plain(301, 403, RED)]))
    assert frame.shape == (302, 404, 3)
    assert np.abs(frame.astype(int) - RED).max() <= CLOSE


def test_a_rendered_frame_survives_encoding_whatever_its_memory_layout(tmp_path: Path) -> None:
    vector = environments.make(EnvSettings(name="CartPole-v1"), range(1), with_frames=True)
    drawn = vector.frame()
    vector.close()
    for name, frame in {"whole": drawn, "mirrored": drawn[:, ::-1]}.items():
        (read_again,) = read(write(tmp_path / f"{name}.mp4", [frame]))
        assert read_again.shape == frame.shape == (400, 600, 3)
        assert np.abs(read_again.astype(int) - frame).mean() < 1, name


def test_a_video_that_cannot_be_stored_is_refused_in_one_line(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 256, 256, 3), np.uint8)
    refused = r"^--video .*full.mp4 cannot be written \(File too large\); free some space$"
    with pytest.raises(UserError, match=refused) as caught, disk_full_after(10_000):
        write(tmp_path / "full.mp4", list(noise))
    assert caught.value.exit_code == EXIT_STORAGE
    with pytest.raises(UserError, match="no such directory"):
        VideoFile(tmp_path / "missing" / "play.mp4")
