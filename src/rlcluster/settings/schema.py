"""Every setting: its name, meaning, unit, default and where the default comes from.

Settings are frozen. Every value may be given as text: it is converted by its declared type, so that `5e-4` is a
number and `no` a truth value. `config_loading` reads them from files and flags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.fields import FieldInfo

AlgorithmName = Literal["ppo", "a2c", "impala", "a3c"]
ModeName = Literal["sequential", "parallel", "distributed"]
NetworkName = Literal["impala", "nature", "mlp"]
OptimizerName = Literal["adam", "rmsprop"]
KernelsName = Literal["auto", "native", "torch"]
SyncStrategy = Literal["gradients", "parameters"]
WireName = Literal["float32", "bfloat16"]
DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]

ALGORITHM_NAMES: tuple[str, ...] = get_args(AlgorithmName)
MODE_NAMES: tuple[str, ...] = get_args(ModeName)
NETWORK_NAMES: tuple[str, ...] = get_args(NetworkName)
BUDGETS = ("total_timesteps", "duration", "total_updates")
# Of each group, the last source that gives one decides.
ALTERNATIVES = (
    tuple(f"training.{budget}" for budget in BUDGETS),
    ("training.batch_size", "training.n_minibatches"),
    ("env.num_envs", "parallel.num_envs_per_worker"),
)
CONFIG_FILE = "config.yaml"  # the settings in a run directory
NULLS = ("null", "~", "")
DEFAULT_TOTAL_TIMESTEPS = 25_000_000  # Procgen's easy protocol (arXiv 1912.01588)


def refuse_truth_value(value: object) -> object:
    """`true` is not the number 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number, not a truth value")
    return value


def parse_count(value: object) -> object:
    """1_000_000, "25e6" and 25e6 are whole numbers; 0.5 is not."""
    value = refuse_truth_value(value)
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def parse_duration(value: object) -> object:
    """Hours as a plain number ("0.5"), or with a unit: "90s", "30m", "2h". The result is in seconds."""
    match = re.fullmatch(r"([0-9.eE+-]+)\s*([smh]?)", str(value).strip())
    if match is None:
        raise ValueError("should be hours (0.5) or a number with a unit (90s, 30m, 2h)")
    try:
        number = float(match[1])
    except ValueError:
        raise ValueError("should be hours (0.5) or a number with a unit (90s, 30m, 2h)") from None
    return number * {"s": 1.0, "m": 60.0, "h": 3600.0, "": 3600.0}[match[2]]


def parse_sizes(value: object) -> object:
    """A list, a number, or text such as "64,64"."""
    if isinstance(value, int):
        return [value]
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(parse_count), Field(ge=1)]
Natural = Annotated[int, BeforeValidator(parse_count), Field(ge=0)]
BoundedCount = Annotated[Count, Field(le=2**20)]
Level = Annotated[int, BeforeValidator(parse_count), Field(ge=0, lt=2**31)]  # what the engine's integers hold
Seed = Annotated[int, BeforeValidator(parse_count), Field(ge=0, lt=2**63)]
Number = Annotated[float, BeforeValidator(refuse_truth_value), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0, allow_inf_nan=False),
    PlainSerializer(lambda seconds: f"{seconds:.17g}s"),
]
Sizes = Annotated[tuple[Count, ...], BeforeValidator(parse_sizes), Field(min_length=1)]


def is_null(value: object) -> bool:
    """True for "not set": null in JSON, and the words for it in YAML and in flags."""
    return value is None or (isinstance(value, str) and value in NULLS)


class Section(BaseModel):
    """One block of the settings file. Unknown keys are errors; `null` and `~` mean "not set"."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _read_null(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            return {key: None if is_null(value) else value for key, value in data.items()}
        return data


class EnvSettings(Section):
    """The environments. The options after `start_level` are those of the Procgen engine."""

    name: str = Field(
        "procgen-coinrun-v0",
        description="a Procgen game (coinrun, procgen-coinrun-v0) or the id of a Gymnasium environment",
    )
    num_envs: BoundedCount = Field(32, description="environments in total, over all processes [cpu]")
    seed: Seed = Field(42, description="environment i's randomness depends on (seed, i) alone")
    distribution_mode: DistributionMode = Field("easy", description="difficulty of the levels")
    num_levels: Level = Field(200, description="training levels, 0 for all (200: Procgen's easy protocol)")
    start_level: Level = Field(0, description="seed of the first training level")
    use_sequential_levels: bool = Field(False, description="go to the next level at once when one is done")
    center_agent: bool = Field(True, description="the view follows the agent")
    use_backgrounds: bool = Field(True, description="draw backgrounds")
    use_monochrome_assets: bool = Field(False, description="draw plain shapes")
    restrict_themes: bool = Field(False, description="one theme per kind of object")
    use_generated_assets: bool = Field(False, description="random textures instead of drawn ones")
    paint_vel_info: bool = Field(False, description="show the agent's velocity in the frame")


class TrainingSettings(Section):
    """The algorithm. Sources: [tp] train-procgen's PPO, [a2c] arXiv 1602.01783, [im] IMPALA, arXiv
    1802.01561, [cpu] our first configuration.
    """

    total_timesteps: Count | None = Field(None, description="budget in environment steps (25e6 if none is set)")
    duration: Duration | None = Field(None, description="budget in hours (0.5), or with a unit: 90s, 30m, 2h")
    total_updates: Count | None = Field(None, description="budget in updates (rollout + learning)")
    n_steps: BoundedCount = Field(128, description="steps per environment and rollout [cpu]")
    batch_size: Count | None = Field(
        None, description="samples per minibatch, all processes; null: nearest to 1024 [cpu]"
    )
    n_minibatches: Count | None = Field(None, description="minibatches per epoch, instead of batch_size")
    n_epochs: Count = Field(4, description="passes over each rollout [cpu]")
    optimizer: OptimizerName | None = Field(
        None, description="adam or rmsprop, not for a3c; null: adam for ppo [tp], else rmsprop [a2c] [im]"
    )
    learning_rate: Positive = Field(5e-4, description="step size of the optimiser [tp]")
    anneal_learning_rate: bool = Field(False, description="linearly to 0 over the budget")
    gamma: Fraction = Field(0.999, description="discount per step [tp]")
    gae_lambda: Fraction = Field(0.95, description="1 gives n-step returns [tp]")
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus [tp]")
    value_coefficient: NonNegative = Field(0.5, description="weight of the value loss [tp]")
    max_grad_norm: Positive | None = Field(0.5, description="gradient norm limit, null for none [tp]")
    clip_range: Positive = Field(0.2, description="PPO's limit on the probability ratio [tp]")
    clip_value_range: Positive | None = Field(0.2, description="limit on the value's change, null for none [tp]")
    target_kl: Positive | None = Field(None, description="no further epoch once approx_kl exceeds this")
    normalize_advantages: bool = Field(
        True, description="over each global minibatch [tp]; impala: over the update, for one forward pass more"
    )
    normalize_rewards: bool = Field(True, description="divide by the std of the discounted return [tp]")
    reward_clip: Positive = Field(10.0, description="limit on a normalised reward [tp]")
    rho_bar: Positive = Field(1.0, description="V-trace's limit on the ratio in the temporal difference [im]")
    c_bar: Positive = Field(1.0, description="V-trace's limit on the ratio in the trace [im]")
    adam_epsilon: Positive = Field(1e-5, description="Adam's epsilon [tp]")
    rmsprop_decay: Fraction = Field(0.99, description="RMSProp's decay [a2c]")
    rmsprop_epsilon: Positive = Field(1e-5, description="RMSProp's epsilon [a2c]")

    @model_validator(mode="before")
    @classmethod
    def _set_default_budget(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and all(is_null(data.get(budget)) for budget in BUDGETS):
            return {**data, "total_timesteps": DEFAULT_TOTAL_TIMESTEPS}
        return data


class PolicySettings(Section):
    """The network."""

    network: NetworkName | None = Field(None, description="null: impala for images, mlp for vectors")
    hidden_sizes: Sizes = Field((64, 64), description="layers of the mlp network, as 64,64")


class ParallelSettings(Section):
    """Read by the modes parallel and distributed."""

    num_workers: Count | None = Field(
        None, description="worker processes (impala: actors); null: for each physical core (impala: as measured)"
    )
    workers_per_rank: Count | None = Field(
        None, description="distributed impala and a3c: actors or workers of each rank; null: chosen for the machine"
    )
    num_envs_per_worker: Count | None = Field(None, description="environments of each worker, instead of num_envs")
    pin_workers: bool = Field(True, description="tie each worker to its cores, where the system can")
    timeout_seconds: Positive = Field(120.0, description="a worker that is silent for so long has failed")
    max_restarts: Natural = Field(0, description="how often a run whose worker fails goes on from its last checkpoint")
    sync_strategy: SyncStrategy = Field(
        "gradients",
        description="what workers exchange: gradients at every optimiser's step, or parameters, averaged now and then",
    )
    sync_updates: Count = Field(1, description="updates between two averages of the parameters")
    wire_dtype: WireName = Field("float32", description="gradients on the way between workers; bfloat16 halves them")
    preempt_stragglers: bool = Field(
        False, description="end late workers' rollouts early once 60 % are done (DD-PPO); not reproducible"
    )
    deterministic: bool = Field(
        False, description="impala: exactly one update of lag, so that the same seed gives the same run"
    )
    slots_per_actor: Annotated[Count, Field(ge=2)] = Field(
        2, description="impala: rollouts that an actor may be ahead; the lag stays within twice as many updates"
    )


class HardwareSettings(Section):
    """What the run may use of this machine."""

    device: Literal["cpu"] = Field("cpu", description="this suite is for CPUs")
    num_threads: Count | None = Field(
        None, description="threads of our kernels, torch, OpenMP, MKL, OpenBLAS; null: all cores allowed"
    )
    chunk_size: Count | None = Field(None, description="samples per gradient pass; null: what fits the caches")
    rollout_dir: str | None = Field(
        None, description="folder for rollouts that do not fit into memory: they are mapped from a file in it"
    )
    kernels: KernelsName = Field(
        "auto",
        description="convolutions; auto: our own where possible, native: or an error, torch: never",
    )


class ClusterSettings(Section):
    """Read by mode distributed only."""

    num_workers: Count | None = Field(None, description="ranks over all machines")
    distributed_backend: Literal["gloo"] = Field("gloo", description="engine of torch.distributed")
    master_addr: str = Field("localhost", description="address of rank 0")
    master_port: Annotated[int, BeforeValidator(parse_count), Field(ge=1, le=65535)] = Field(
        29500, description="port of rank 0"
    )


class OutputSettings(Section):
    """Where a run is kept, and how often it is saved."""

    output_dir: str | None = Field(None, description="run directory; null: runs/ and a name made from the run")
    checkpoint_dir: str | None = Field(None, description="null: checkpoints/ in the run directory")
    log_dir: str | None = Field(None, description="null: logs/ in the run directory")
    checkpoint_seconds: Positive = Field(300.0, description="seconds between checkpoints")
    checkpoint_updates: Count | None = Field(None, description="updates between checkpoints, instead of seconds")
    keep_checkpoints: Count = Field(3, description="periodic checkpoints kept; the newest stay")


class Settings(Section):
    """All settings of a run."""

    algorithm: AlgorithmName = "ppo"
    mode: ModeName = "sequential"
    env: EnvSettings = EnvSettings()
    training: TrainingSettings = TrainingSettings()
    policy: PolicySettings = PolicySettings()
    parallel: ParallelSettings = ParallelSettings()
    hardware: HardwareSettings = HardwareSettings()
    cluster: ClusterSettings = ClusterSettings()
    output: OutputSettings = OutputSettings()

    @property
    def rollout_size(self) -> int:
        """Samples of one rollout, over all processes."""
        return self.training.n_steps * self.env.num_envs

    @property
    def num_workers(self) -> int | None:
        """Processes that train together; None: to be chosen for the machine, or given by the launcher."""
        if self.mode == "sequential":
            return 1
        return self.parallel.num_workers or (self.cluster.num_workers if self.mode == "distributed" else None)

    @property
    def num_ranks(self) -> int | None:
        """Processes that exchange gradients; as `num_workers`, except that a parallel impala or a3c is one rank, which
        leads its workers.
        """
        return 1 if self.mode == "parallel" and self.algorithm in LEADS_WORKERS else self.num_workers

    @property
    def crew_size(self) -> int | None:
        """Workers that a rank of impala or a3c leads; None: to be chosen for the machine."""
        return self.parallel.num_workers if self.mode == "parallel" else self.parallel.workers_per_rank

    @property
    def batch_size(self) -> int:
        """Samples of one minibatch, over all processes: at most the whole rollout."""
        if not USES_MINIBATCHES[self.algorithm]:
            return self.rollout_size
        if self.training.n_minibatches is not None:
            return self.rollout_size // self.training.n_minibatches
        if self.training.batch_size is not None:
            return min(self.training.batch_size, self.rollout_size)
        return min(self.valid_batch_sizes(), key=lambda size: abs(math.log(size / DEFAULT_BATCH_SIZE)))

    def valid_batch_sizes(self) -> list[int]:
        """num_envs times a divisor of n_steps: every minibatch takes as many steps of each environment."""
        n_steps = self.training.n_steps
        small = [d for d in range(1, math.isqrt(n_steps) + 1) if n_steps % d == 0]
        return [self.env.num_envs * d for d in sorted({*small, *(n_steps // d for d in small)})]

    @property
    def num_minibatches(self) -> int:
        return self.rollout_size // self.batch_size

    @property
    def n_epochs(self) -> int:
        return self.training.n_epochs if USES_MINIBATCHES[self.algorithm] else 1

    @property
    def optimizer(self) -> str:
        return optimizer_of(self.algorithm, self.training.optimizer)

    @property
    def run_name(self) -> str:
        """`ppo_sequential`: the stem of the checkpoint files."""
        return f"{self.algorithm}_{self.mode}"

    @property
    def log_name(self) -> str:
        """`PPO_Sequential`: the folder of the logs."""
        return f"{self.algorithm.upper()}_{self.mode.capitalize()}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values that load back to the same settings; what the algorithm does not use is left out."""
        data = self.model_dump(mode="json")
        if USES_MINIBATCHES[self.algorithm]:
            data["training"].update(batch_size=self.batch_size, n_minibatches=None)
        data["training"]["optimizer"] = self.optimizer
        for key in unread(self.algorithm, self.training.optimizer):
            section, name = key.split(".")
            del data[section][name]
        return data

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


DEFAULT_BATCH_SIZE = 1024
LEADS_WORKERS = ("impala", "a3c")  # whose ranks have workers of their own
CORRECTS_LAG = ("impala",)  # by V-trace, with the values of the policy that learns; the others' targets are GAE's
USES_MINIBATCHES = {"ppo": True, "a2c": False, "impala": False, "a3c": False}

# Settings that an algorithm does not read: giving one is an error, for a switch must do something.
_ONLY_PPO = (
    *("training.batch_size", "training.n_minibatches", "training.n_epochs", "training.clip_range"),
    *("training.clip_value_range", "training.target_kl"),
)
_ONLY_IMPALA = ("training.rho_bar", "training.c_bar", "parallel.deterministic", "parallel.slots_per_actor")
UNUSED: dict[str, tuple[str, ...]] = {
    "ppo": (*_ONLY_IMPALA, "parallel.workers_per_rank"),
    "a2c": (*_ONLY_PPO, *_ONLY_IMPALA, "parallel.workers_per_rank"),
    "a3c": (
        *(*_ONLY_PPO, *_ONLY_IMPALA, "training.optimizer"),  # its shared statistics are RMSProp's
        *("parallel.preempt_stragglers", "parallel.sync_strategy", "parallel.wire_dtype"),
    ),
    "impala": (*_ONLY_PPO, "parallel.preempt_stragglers"),
}
ONLY_OPTIMIZER: dict[str, tuple[str, ...]] = {
    "adam": ("training.adam_epsilon",),
    "rmsprop": ("training.rmsprop_decay", "training.rmsprop_epsilon"),
}
OF_ONE_OPTIMIZER = frozenset(key for keys in ONLY_OPTIMIZER.values() for key in keys)
DEFAULT_OPTIMIZERS = {"ppo": "adam", "a2c": "rmsprop", "impala": "rmsprop", "a3c": "rmsprop"}


def optimizer_of(algorithm: str, given: str | None) -> str:
    """What `training.optimizer` means for an algorithm."""
    if given is None or "training.optimizer" in UNUSED.get(algorithm, ()):
        return DEFAULT_OPTIMIZERS.get(algorithm, "adam")
    return given


def unread(algorithm: str, optimizer: str | None) -> dict[str, str]:
    """The settings that a run of this algorithm with this `training.optimizer` does not read, and why."""
    chosen, unused = optimizer_of(algorithm, optimizer), UNUSED.get(algorithm, ())
    others = OF_ONE_OPTIMIZER.difference(ONLY_OPTIMIZER.get(chosen, OF_ONE_OPTIMIZER))
    reason = algorithm if "training.optimizer" in unused else f"training.optimizer={chosen}"
    return {**dict.fromkeys(sorted(others), reason), **dict.fromkeys(unused, algorithm)}


# Where an algorithm's own defaults differ from the sections above. A2C: arXiv 1602.01783 and its usual
# synchronous form (n = 5, 16 environments, RMSProp 7e-4, gamma .99, advantages not normalised). IMPALA: RMSProp as in
# arXiv 1802.01561, the numbers chosen on Procgen (docs/results.md); the paper's are for losses summed over samples.
_A2C_DEFAULTS: dict[str, dict[str, Any]] = {
    "env": {"num_envs": 16},
    "training": {
        "n_steps": 5,
        "learning_rate": 7e-4,
        "gamma": 0.99,
        "gae_lambda": 1.0,
        "normalize_advantages": False,
    },
}
ALGORITHM_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {},
    "a2c": _A2C_DEFAULTS,
    "a3c": _A2C_DEFAULTS,
    "impala": {
        "env": {"num_envs": 64},
        "training": {
            "n_steps": 32,
            "learning_rate": 2e-4,
            "entropy_coefficient": 0.003,
            "normalize_advantages": False,
        },
    },
}

# Settings that a resumed run may change: speed, length and storage (with an annealed learning rate, its length
# decides the rate; the command line then warns).
CHANGEABLE_ON_RESUME = {
    *(f"training.{budget}" for budget in BUDGETS),
    "mode",
    "parallel.num_workers",
    "parallel.workers_per_rank",
    "parallel.num_envs_per_worker",
    "parallel.pin_workers",
    "parallel.timeout_seconds",
    "parallel.max_restarts",
    "cluster.num_workers",
    "cluster.distributed_backend",
    "cluster.master_addr",
    "cluster.master_port",
    "hardware.num_threads",
    "hardware.kernels",
    "hardware.rollout_dir",
    "output.output_dir",
    "output.checkpoint_seconds",
    "output.checkpoint_updates",
    "output.keep_checkpoints",
}


def budgets(settings: Settings) -> tuple[float | None, ...]:
    """The limits of a run: steps, seconds, updates."""
    return tuple(getattr(settings.training, budget) for budget in BUDGETS)


class SettingField(NamedTuple):
    """One setting, as the flags and the documentation need it."""

    section: str
    name: str
    info: FieldInfo

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"


def setting_fields() -> Iterator[SettingField]:
    """Every setting of every section, in the order of this file."""
    for section, section_info in Settings.model_fields.items():
        if isinstance(section_info.annotation, type) and issubclass(section_info.annotation, Section):
            for name, info in section_info.annotation.model_fields.items():
                yield SettingField(section, name, info)
