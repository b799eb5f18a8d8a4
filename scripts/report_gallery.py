"""Pictures and pages of a fixed set of runs, to be looked at.

    python scripts/report_gallery.py --output test-artefacts/gallery

The runs are synthetic (the logs are drawn from random numbers, the readers and reports are the real ones):

    methods    5 methods x 3 seeds on one game, one run failed
    games      2 methods x 5 seeds x 2 games, enough for intervals
    pair       2 methods, one run each
    ten        10 runs of one method
    recipes    2 recipes of one algorithm that differ in five settings, 3 seeds each
    one        1 run, by `rlcluster plot`

With Chromium and its driver (Debian: chromium, chromium-driver), the pages are also photographed at 1440, 1280 and 400
pixels, light and dark, and printed to PDF.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.cli import main as rlcluster
from rlcluster.plan import HelperPlan, Plan, RankPlan
from rlcluster.settings.loading import load_settings

UPDATES, STEPS, CORES = 400, 4096, 2  # of a run; per update; of its machine
WIDTHS, SCHEMES = (1440, 1280, 400), ("light", "dark")


class Method(NamedTuple):
    algorithm: str
    mode: str
    fps: float
    level: float  # the reward that it reaches
    phases: tuple[float, float, float]  # shares of rollout, learn and sync in an update; the rest is idle
    changes: tuple[tuple[str, str], ...] = ()  # settings that are not the default


METHODS = (
    Method("ppo", "sequential", 1100.0, 8.4, (0.34, 0.65, 0.0)),
    Method("ppo", "parallel", 1900.0, 8.5, (0.3, 0.6, 0.09)),
    Method("a2c", "parallel", 2100.0, 7.2, (0.45, 0.35, 0.18)),
    Method("impala", "parallel", 2300.0, 8.0, (0.25, 0.74, 0.0)),
    Method("a3c", "parallel", 1500.0, 6.4, (0.52, 0.4, 0.0)),
)
OTHER = METHODS[1]._replace(
    level=7.8,
    changes=(
        *(("training.gamma", "0.99"), ("training.n_steps", "64"), ("training.n_epochs", "1")),
        *(("training.learning_rate", "1e-3"), ("policy.network", "nature")),
    ),
)


def record(update: int, method: Method, draw: random.Random, luck: float) -> dict[str, Any]:
    """One line of a log."""
    share = 1 - math.exp(-update / 120)
    own = method.level / 8.5  # so that the methods' diagnostics differ
    reward = 3 + (method.level + luck - 3) * share + draw.gauss(0, 0.4)
    fps = method.fps * (1 + draw.gauss(0, 0.03))
    seconds = STEPS / fps
    rollout, learn, sync = method.phases
    return {
        **{"update": update, "steps_global": STEPS * update, "world_size": 2, "fps": fps, "t_iter": seconds},
        **{"t_rollout": rollout * seconds, "t_learn": learn * seconds, "t_sync": sync * seconds},
        **({"learner_idle": rollout} if method.algorithm == "impala" else {}),
        **{"loss": 0.1, "policy_loss": -0.02 + draw.gauss(0, 0.005), "value_loss": 0.4 * (1.4 - own * share)},
        **{"entropy": 2.7 - 1.6 * own * share, "action_information": 0.5 * own * share, "clip_frac": 0.1},
        **{"approx_kl": max(0.0, 0.01 * own + draw.gauss(0, 0.002)), "explained_variance": 0.9 * own * share - 0.1},
        **{"grad_norm": 0.5, "learning_rate": 5e-4, "episode_count": 20, "episode_reward_mean": reward},
        **{"episode_reward_std": 2.5, "episode_length_mean": 160.0, "episode_reward_recent": reward},
        **{"episode_reward_recent_std": 2.5, "memory_gb": 1.2, "peak_memory_gb": 1.4},
        "elapsed_seconds": STEPS / method.fps * update,
    }


def plan_of(method: Method, num_envs: int) -> Plan:
    """Sequential runs have one core, parallel ones two: ranks, an actor beside the learner, or workers."""
    half = num_envs // 2
    shares = range(half), range(half, num_envs)
    if method.mode == "sequential":
        ranks = [RankPlan(range(num_envs), 1, 1, (), CORES)]
    elif method.algorithm == "impala":
        ranks = [RankPlan(range(num_envs), 1, 1, (), CORES, (HelperPlan(range(num_envs), 1, ()),))]
    elif method.algorithm == "a3c":
        ranks = [RankPlan(range(num_envs), 1, 1, (), CORES, tuple(HelperPlan(share, 1, ()) for share in shares))]
    else:
        ranks = [RankPlan(share, 1, 1, (), CORES, num_peers=2) for share in shares]
    return Plan(method.algorithm, method.mode, tuple(ranks))


def write_run(path: Path, method: Method, seed: int, game: str, updates: int = UPDATES) -> Path:
    """A run directory as training leaves it; one with fewer updates has failed."""
    flags = {"env.name": game, "env.seed": str(seed), "training.total_timesteps": str(UPDATES * STEPS)}
    chosen = {"policy.network": "impala", **dict(method.changes)}  # training writes the network that it has chosen
    settings = load_settings(method.algorithm, method.mode, flags=flags | chosen)
    draw = random.Random(f"{method.algorithm}/{method.mode}{len(method.changes) or ''} {seed} {game}")
    luck = draw.gauss(0, 0.35)
    logs = path / "logs" / settings.log_name
    logs.mkdir(parents=True)
    (path / "config.yaml").write_text(settings.to_yaml())
    lines = [json.dumps(record(update, method, draw, luck)) for update in range(1, updates + 1)]
    (logs / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    is_whole = updates == UPDATES
    state = {"state": "finished" if is_whole else "failed", "steps_global": STEPS * updates, "update": updates}
    (path / "run_state.json").write_text(json.dumps(state | {"reason": None if is_whole else "out of memory (rank 1)"}))
    (path / "plan.json").write_text(json.dumps(plan_of(method, settings.env.num_envs).to_dict()))
    machine = {
        **{"cpu_model": "a processor", "cores_allowed": CORES, "cores_physical": CORES, "cores_logical": 2 * CORES},
        **{"num_threads": 1, "memory_total_gb": 8.0, "system": "Linux 6.1 x86_64"},
        "versions": {"rlcluster": "0.1.0", "torch": "2.13.0"},
    }
    (path / "machine.json").write_text(json.dumps(machine | {"git_commit": "abcdef0123"}))
    if is_whole:
        results = {
            levels: {"episodes": 300, "reward_mean": mean, "reward_interval_95": [mean - 0.3, mean + 0.3]}
            for levels, mean in (("train", method.level + luck), ("test", method.level + luck - 0.7))
        }
        facts = {"checkpoint": "x.pt", "env": game, "steps_global": STEPS * updates, "deterministic": False, "seed": 0}
        (path / "evaluation.json").write_text(json.dumps({**facts, "results": results}))
    return path


def sets_of_runs(folder: Path) -> dict[str, list[Path]]:
    def name(method: Method, seed: int, game: str = "coinrun") -> str:
        return f"{method.algorithm}_{method.mode}_{game}_seed{seed}"

    five = [
        write_run(
            folder / "methods" / name(method, seed), method, seed, "coinrun", 120 if k == 4 and seed == 3 else UPDATES
        )
        for k, method in enumerate(METHODS)
        for seed in (1, 2, 3)
    ]
    games = [
        write_run(folder / "games" / name(method, seed, game), method, seed, game)
        for method in METHODS[1:4:2]
        for game in ("coinrun", "maze")
        for seed in (1, 2, 3, 4, 5)
    ]
    pair = [write_run(folder / "pair" / name(method, 1), method, 1, "coinrun") for method in METHODS[:2]]
    ten = [write_run(folder / "ten" / name(METHODS[1], seed), METHODS[1], seed, "coinrun") for seed in range(1, 11)]
    recipes = [
        write_run(folder / "recipes" / f"{recipe}_seed{seed}", method, seed, "coinrun")
        for recipe, method in (("plain", METHODS[1]), ("other", OTHER))
        for seed in (1, 2, 3)
    ]
    return {"methods": five, "games": games, "pair": pair, "ten": ten, "recipes": recipes}


def photograph(pages: Sequence[Path]) -> None:
    """Every page at every width and in both schemes, and printed."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        print("no Chromium with its driver here: the pages are not photographed")
        return
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        for page in pages:
            for width in WIDTHS:
                for scheme in SCHEMES:
                    _photograph(browser, page, width, scheme)
            printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": False})
            page.with_name(f"{page.stem}_print.pdf").write_bytes(base64.b64decode(printed["data"]))
    finally:
        browser.quit()


def _photograph(browser: Any, page: Path, width: int, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.resolve().as_uri())
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    page.with_name(f"{page.stem}_{width}_{scheme}.png").write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("test-artefacts/gallery"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pages = []
        sets = sets_of_runs(Path(folder))
        for name, runs in sets.items():
            output = options.output / name
            formats = ["--format", "png,pdf,svg,csv,md,tex", "--panels", "main,core-hours,diagnostics,seeds"]
            if rlcluster(["compare", *map(str, runs), "--reference", "--output", str(output), *formats]) != 0:
                raise SystemExit(f"compare failed for {name}")
            pages.append(output / "comparison.html")
        rlcluster(["plot", str(sets["pair"][0]), "--reference", "--output", str(options.output / "one.png")])
        photograph(pages)


if __name__ == "__main__":
    main()
