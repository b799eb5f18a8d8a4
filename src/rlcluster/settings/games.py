"""The names of Procgen's games, in every form that users write."""

from __future__ import annotations

import re

PROCGEN_GAMES = (
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
)


def procgen_game(name: str) -> str | None:
    """`coinrun` for coinrun, procgen-coinrun-v0 and procgen:procgen-coinrun-v0; None for other environments."""
    match = re.fullmatch(r"(?:procgen:)?(?:procgen-)?([a-z]+)(?:-v0)?", name)
    return match[1] if match and match[1] in PROCGEN_GAMES else None


def game_name(name: str) -> str:
    """`coinrun` for a Procgen game in any form; else the name unchanged."""
    return procgen_game(name) or name
