"""Embedded clips: the first seconds of a video, small."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest

from rlcluster.evaluation.frames import VideoFile
from rlcluster.reports.clips import choose, shrink


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 seconds, 480 x 272: a grey that brightens over the frames, with moving noise."""
    path = tmp_path_factory.mktemp("video") / "play.mp4"
    noise = np.random.default_rng(0).integers(-20, 20, (272, 480, 3))
    file = VideoFile(path)
    for k in range(300):
        file.add((np.roll(noise, 2 * k, 1) + 30 + k // 2).astype(np.uint8))
    file.close()
    return path


def test_a_clip_is_the_first_twelve_seconds_192_pixels_wide(video: Path) -> None:
    content = shrink(video, 1_000_000)
    assert content is not None
    with av.open(io.BytesIO(content)) as clip:
        stream = clip.streams.video[0]
        assert (stream.width, stream.height) == (192, 108)  # 272 * 192 / 480 = 108.8, to the nearest even number
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 15)
        frames = list(clip.decode(stream))
    assert [round(frame.time * 15) for frame in frames] == list(range(12 * 15))
    for k in (0, 90, 179):
        assert frames[k].to_ndarray(format="gray").mean() == pytest.approx(30 + k // 2, abs=3)
    assert content.index(b"moov") < content.index(b"mdat")  # so that browsers can start before the file is loaded


def test_a_clip_fits_the_limit_or_is_none(video: Path) -> None:
    best = shrink(video, 1_000_000)
    assert best is not None
    smaller = shrink(video, 3 * len(best) // 4)
    assert smaller is not None
    assert len(smaller) <= 3 * len(best) // 4
    assert shrink(video, 100) is None


def test_a_file_that_is_not_a_video_gives_no_clip(video: Path, tmp_path: Path) -> None:
    for name, content in {"text": b"not a video", "empty": b"", "truncated": video.read_bytes()[:2000]}.items():
        file = tmp_path / f"{name}.mp4"
        file.write_bytes(content)
        assert shrink(file, 1_000_000) is None, name


def test_the_clip_of_unseen_levels_is_preferred() -> None:
    assert choose([Path("play_train.mp4"), Path("play_test.mp4")]) == Path("play_test.mp4")
    assert choose([Path("b.mp4"), Path("a.mp4")]) == Path("b.mp4")
    assert choose([]) is None
