"""Every setting: its name, meaning, unit, default and the source of the default.

Settings are frozen. `loading` reads them from files and flags, `values` converts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from rlcluster.settings.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, Algorithm, LossName, OptimizerName
from rlcluster.settings.values import (
    Arguments,
    BoundedCount,
    Count,
    Duration,
    Fraction,
    IntervalText,
    Level,
    Names,
    Natural,
    NonNegative,
    Number,
    PathText,
    Positive,
    Seed,
    Sizes,
    Wrappers,
    is_import_path,
    is_null,
    parse_count,
)

ModeName = Literal["sequential", "parallel", "distributed"]
NetworkName = Literal["impala", "nature", "mlp"]
KernelsName = Literal["auto", "native", "torch"]
SyncStrategy = Literal["gradients", "parameters"]
InitialPart = Literal["parameters", "model"]
WireName = Literal["float32", "bfloat16"]
if TYPE_CHECKING:
    AlgorithmName = str
else:
    AlgorithmName = Literal[tuple(ALGORITHMS)]
DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]


def _check_network(name: str) -> str:
    if name not in NETWORK_NAMES and not is_import_path(name):
        raise ValueError("input should be 'impala', 'nature' or 'mlp', or your own as 'my_module:make_network'")
    return name


def _check_loggers(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(name in LOGGER_NAMES or is_import_path(name) for name in names):
        raise ValueError(f"should be {', '.join(LOGGER_NAMES)} or my_module:MyLogger")
    return names


def _check_import_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    if not all(map(is_import_path, paths)):
        raise ValueError("should be MODULE:NAME, such as my_module:MyCallback")
    return paths


Network = Annotated[str, AfterValidator(_check_network)]
Loggers = Annotated[Names, AfterValidator(_check_loggers)]
ImportPaths = Annotated[Names, AfterValidator(_check_import_paths)]
LOGGER_NAMES = ("tensorboard", "wandb", "mlflow")
MODE_NAMES: tuple[str, ...] = get_args(ModeName)
NETWORK_NAMES: tuple[str, ...] = get_args(NetworkName)
BUDGETS = ("total_timesteps", "duration", "total_updates")
# In each group, the last source that sets one replaces the others.
ALTERNATIVES = (
    tuple(f"training.{budget}" for budget in BUDGETS),
    ("training.batch_size", "training.n_minibatches"),
    ("env.num_envs", "parallel.num_envs_per_worker"),
)
DEFAULT_TOTAL_TIMESTEPS = 25_000_000  # Procgen's easy protocol (arXiv 1912.01588)


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
    """The environments. The options after `wrappers` are those of the Procgen engine."""

    name: str = Field(
        "procgen-coinrun-v0",
        description="a Procgen game (coinrun, procgen-coinrun-v0), the id of a Gymnasium environment, or your own: "
        "my_module:Corridor-v0",
    )
    num_envs: BoundedCount = Field(32, description="environments in total, over all processes [cpu]")
    seed: Seed = Field(42, description="random seed; environment i depends on (seed, i) alone")
    frame_stack: Count = Field(1, description="latest observations that the policy sees, along the last axis")
    kwargs: Arguments = Field({}, description='arguments of a Gymnasium environment, as {"size": 7}')
    wrappers: Wrappers = Field(
        (), description='wrappers of a Gymnasium environment, as ["my_module:Scale", {"my_module:Clip": {"low": 0}}]'
    )
    distribution_mode: DistributionMode = Field("easy", description="difficulty of the levels")
    num_levels: Level = Field(200, description="training levels, 0 for unlimited (200: Procgen's easy protocol)")
    start_level: Level = Field(0, description="seed of the first training level")
    use_sequential_levels: bool = Field(False, description="continue with the next level when one is completed")
    center_agent: bool = Field(True, description="centre the view on the agent")
    use_backgrounds: bool = Field(True, description="draw backgrounds")
    use_monochrome_assets: bool = Field(False, description="draw plain shapes")
    restrict_themes: bool = Field(False, description="one theme per kind of object")
    use_generated_assets: bool = Field(False, description="random textures instead of the drawn assets")
    paint_vel_info: bool = Field(False, description="show the agent's velocity in the frame")


class TrainingSettings(Section):
    """The algorithm. Sources: [tp] train-procgen's PPO, [a2c] arXiv 1602.01783, [im] IMPALA, arXiv
    1802.01561, [cpu] our first configuration.
    """

    total_timesteps: Count | None = Field(None, description="budget in environment steps (25e6 if none is set)")
    duration: Duration | None = Field(None, description="budget in hours (0.5), or with a unit: 90s, 30m, 2h")
    total_updates: Count | None = Field(None, description="budget in updates (rollout + learning)")
    target_reward: Number | None = Field(
        None, description="ends the run early, once the mean reward of the last 100 episodes reaches it"
    )
    n_steps: BoundedCount = Field(128, description="steps per environment and rollout [cpu]")
    batch_size: Count | None = Field(
        None, description="samples per minibatch, all processes; null: nearest to 1024 [cpu], impala 512"
    )
    n_minibatches: Count | None = Field(None, description="minibatches per epoch, instead of batch_size")
    n_epochs: Count = Field(4, description="passes over each rollout [cpu]")
    optimizer: OptimizerName | None = Field(
        None, description="adam or rmsprop; null: rmsprop for a2c and a3c [a2c], else adam [tp]"
    )
    learning_rate: Positive = Field(5e-4, description="step size of the optimiser [tp]")
    anneal_learning_rate: bool = Field(False, description="anneal linearly to 0 over the budget")
    gamma: Fraction = Field(0.999, description="discount per step [tp]")
    gae_lambda: Fraction = Field(0.95, description="lambda of GAE; 1 gives n-step returns [tp]")
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus [tp]")
    value_coefficient: NonNegative = Field(0.5, description="weight of the value loss [tp]")
    max_grad_norm: Positive | None = Field(0.5, description="gradient norm limit, null for none [tp]")
    clip_range: Positive | None = Field(
        0.2, description="limit on the probability ratio [tp]; impala: null for the plain policy gradient [im]"
    )
    clip_value_range: Positive | None = Field(0.2, description="limit on the value's change, null for none [tp]")
    target_kl: Positive | None = Field(None, description="stop the epochs of an update once approx_kl exceeds this")
    normalize_advantages: bool = Field(
        True, description="over each global minibatch [tp]; impala: over the update, at one extra forward pass"
    )
    normalize_rewards: bool = Field(True, description="divide rewards by the std of the discounted return [tp]")
    reward_clip: Positive = Field(10.0, description="limit on a normalised reward [tp]")
    rho_bar: Positive = Field(1.0, description="V-trace's limit on the ratio in the temporal difference [im]")
    c_bar: Positive = Field(1.0, description="V-trace's limit on the ratio in the trace [im]")
    adam_epsilon: Positive = Field(1e-5, description="Adam's epsilon [tp]")
    rmsprop_decay: Fraction = Field(0.99, description="RMSProp's decay [a2c]")
    rmsprop_epsilon: Positive = Field(1e-5, description="RMSProp's epsilon [a2c]")

    eval_interval: IntervalText | None = Field(
        None, description="evaluate on unseen levels every so many steps (1e6) or so often (30m), beside the training"
    )
    eval_episodes: Count = Field(20, description="episodes of such an evaluation")

    @model_validator(mode="before")
    @classmethod
    def _set_default_budget(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and all(is_null(data.get(budget)) for budget in BUDGETS):
            return {**data, "total_timesteps": DEFAULT_TOTAL_TIMESTEPS}
        return data


class PolicySettings(Section):
    """The network."""

    network: Network | None = Field(
        None, description="impala, nature, mlp or my_module:make_network; null: impala for images, mlp for vectors"
    )
    hidden_sizes: Sizes = Field((64, 64), description="layers of the mlp network, as 64,64")
    init_from: PathText | None = Field(
        None, description="run or checkpoint whose parameters this run begins with, perhaps of another game"
    )
    init_with: InitialPart = Field(
        "parameters",
        description="what init_from gives: parameters, or model: optimiser, reward statistics and counters too",
    )


class ParallelSettings(Section):
    """Used by modes parallel and distributed."""

    num_workers: Count | None = Field(
        None, description="processes (impala: actors); null: one per physical core (impala: from measured rates)"
    )
    workers_per_rank: Count | None = Field(
        None, description="distributed impala and a3c: actors or workers per rank; null: chosen for the machine"
    )
    num_envs_per_worker: Count | None = Field(None, description="environments per process, instead of num_envs")
    pin_workers: bool = Field(True, description="pin each process to its cores, where the OS allows it")
    timeout_seconds: Positive = Field(120.0, description="a process that does not answer for this long has failed")
    max_restarts: Natural = Field(0, description="restarts from the last checkpoint after a process fails")
    sync_strategy: SyncStrategy = Field(
        "gradients",
        description="what ranks average: gradients, at every optimiser step, or parameters, every sync_updates updates",
    )
    sync_updates: Count = Field(1, description="updates between two averagings of the parameters")
    wire_dtype: WireName = Field(
        "float32", description="dtype of gradients sent between ranks; bfloat16 halves the traffic"
    )
    preempt_stragglers: bool = Field(
        False, description="end late ranks' rollouts early once 60 % are done (DD-PPO); not reproducible"
    )
    deterministic: bool = Field(
        False, description="impala: a lag of exactly one update, so that the same seed gives the same run"
    )
    slots_per_actor: Annotated[Count, Field(ge=2)] = Field(
        2, description="impala: rollouts by which an actor may run ahead; the lag is at most twice as many updates"
    )


class HardwareSettings(Section):
    """What the run may use on this machine."""

    device: Literal["cpu"] = Field("cpu", description="always cpu")
    num_threads: Count | None = Field(
        None,
        description="threads of our kernels, torch, OpenMP, MKL, OpenBLAS; null: all physical cores that pay, for a "
        "small MLP 1",
    )
    chunk_size: Count | None = Field(
        None, description="samples per forward and backward pass; null: as many as fit the caches"
    )
    rollout_dir: PathText | None = Field(
        None, description="directory for rollouts that do not fit into memory; they are memory-mapped files"
    )
    kernels: KernelsName = Field(
        "auto",
        description="convolutions: auto (our own where possible), native (our own or an error), torch",
    )


class ClusterSettings(Section):
    """Used by mode distributed only."""

    num_workers: Count | None = Field(None, description="ranks on all machines")
    distributed_backend: Literal["gloo"] = Field("gloo", description="backend of torch.distributed")
    master_addr: str = Field("localhost", description="address of rank 0")
    master_port: Annotated[int, BeforeValidator(parse_count), Field(ge=1, le=65535)] = Field(
        29500, description="port of rank 0"
    )


class OutputSettings(Section):
    """Where a run is stored, how often it is saved, and who is told about it."""

    output_dir: PathText | None = Field(None, description="run directory; null: a generated name in runs/")
    checkpoint_dir: PathText | None = Field(None, description="null: checkpoints/ in the run directory")
    log_dir: PathText | None = Field(None, description="null: logs/ in the run directory")
    checkpoint_seconds: Positive = Field(300.0, description="seconds between checkpoints")
    checkpoint_updates: Count | None = Field(None, description="updates between checkpoints, instead of seconds")
    keep_checkpoints: Count = Field(3, description="newest periodic checkpoints to keep")
    loggers: Loggers = Field(
        ("tensorboard",), description="besides metrics.jsonl: tensorboard, wandb, mlflow, my_module:MyLogger"
    )
    callbacks: ImportPaths = Field((), description="your own code that follows the run: my_module:MyCallback, ...")
    profile: Count | None = Field(None, description="profile the run from this update on: profile.html, trace.json")
    profile_updates: Count = Field(20, description="updates to profile")


class Settings(Section):
    """All settings of a run."""

    algorithm: AlgorithmName = DEFAULT_ALGORITHM
    mode: ModeName = "sequential"
    env: EnvSettings = EnvSettings()
    training: TrainingSettings = TrainingSettings()
    policy: PolicySettings = PolicySettings()
    parallel: ParallelSettings = ParallelSettings()
    hardware: HardwareSettings = HardwareSettings()
    cluster: ClusterSettings = ClusterSettings()
    output: OutputSettings = OutputSettings()

    @property
    def traits(self) -> Algorithm:
        """The record of the algorithm."""
        return ALGORITHMS[self.algorithm]

    @property
    def rollout_size(self) -> int:
        """Samples per rollout, over all processes."""
        return self.training.n_steps * self.env.num_envs

    @property
    def given_processes(self) -> int | None:
        """The given `num_workers`; None if the machine or the launcher decides. For parallel impala and a3c it counts
        the helpers of the single rank, otherwise ranks.
        """
        if self.mode == "sequential":
            return 1
        return self.parallel.num_workers or (self.cluster.num_workers if self.mode == "distributed" else None)

    @property
    def given_ranks(self) -> int | None:
        """The number of ranks; None if the settings do not decide it."""
        return 1 if self.mode == "parallel" and self.traits.helpers else self.given_processes

    @property
    def given_helpers(self) -> int | None:
        """Actors (impala) or workers (a3c) per rank; None if the settings do not decide it."""
        return self.parallel.num_workers if self.mode == "parallel" else self.parallel.workers_per_rank

    def processes(self, physical_cores: int, launched: int | None) -> int:
        """The effective `num_workers`: as given, as many as a launcher has started, or one per physical core."""
        return self.given_processes or launched or physical_cores

    @property
    def batch_size(self) -> int:
        """Samples per minibatch, over all processes; at most the whole rollout."""
        if not self.traits.has_minibatches:
            return self.rollout_size
        if self.training.n_minibatches is not None:
            return self.rollout_size // self.training.n_minibatches
        if self.training.batch_size is not None:
            return min(self.training.batch_size, self.rollout_size)
        return min(self.valid_batch_sizes(), key=lambda size: abs(math.log(size / self.traits.batch_size)))

    def valid_batch_sizes(self) -> list[int]:
        """num_envs times a divisor of n_steps: every minibatch has equally many steps of each environment. Of whole
        trajectories: n_steps times a divisor of num_envs.
        """
        unit, count = self.env.num_envs, self.training.n_steps
        if self.has_whole_trajectories:
            unit, count = count, unit
        small = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
        return [unit * d for d in sorted({*small, *(count // d for d in small)})]

    @property
    def is_clipped(self) -> bool:
        """True if the loss limits the probability ratio."""
        return self.loss == "ppo_loss"

    @property
    def loss(self) -> LossName:
        clipped = self.traits.clipped_loss
        return self.traits.loss if clipped is None or self.training.clip_range is None else clipped

    @property
    def has_whole_trajectories(self) -> bool:
        """True if minibatches consist of whole trajectories instead of samples."""
        return self.traits.targets == "vtrace" and not self.is_clipped

    @property
    def learns_in_one_pass(self) -> bool:
        """True if an update is one optimiser step on all samples, without clipping."""
        return self.num_minibatches * self.n_epochs == 1 and not self.is_clipped

    @property
    def num_minibatches(self) -> int:
        return self.rollout_size // self.batch_size

    @property
    def n_epochs(self) -> int:
        return self.training.n_epochs if self.traits.has_minibatches else 1

    @property
    def optimizer(self) -> str:
        return self.traits.optimizer_for(self.training.optimizer)

    @property
    def run_name(self) -> str:
        """`ppo_sequential`: the stem of the checkpoint files."""
        return f"{self.algorithm}_{self.mode}"

    @property
    def log_name(self) -> str:
        """`PPO_Sequential`: the folder of the logs."""
        return f"{self.algorithm.upper()}_{self.mode.capitalize()}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values that load back to the same settings, without those that the algorithm does not read."""
        data = self.model_dump(mode="json")
        if self.traits.has_minibatches:
            data["training"].update(batch_size=self.batch_size, n_minibatches=None)
        data["training"]["optimizer"] = self.optimizer
        for key in self.traits.unread(self.training.optimizer, self.training.clip_range is not None):
            section, name = key.split(".")
            del data[section][name]
        return data

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def budgets(settings: Settings) -> tuple[float | None, ...]:
    """The limits of a run: steps, seconds, updates."""
    return tuple(getattr(settings.training, budget) for budget in BUDGETS)


class SettingField(NamedTuple):
    """One setting, for the flags and the documentation."""

    section: str
    name: str
    info: FieldInfo

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def is_path(self) -> bool:
        return PathText in get_args(self.info.annotation)


def setting_fields() -> Iterator[SettingField]:
    """Every setting of every section, in the order of this file."""
    for section, section_info in Settings.model_fields.items():
        if isinstance(section_info.annotation, type) and issubclass(section_info.annotation, Section):
            for name, info in section_info.annotation.model_fields.items():
                yield SettingField(section, name, info)
