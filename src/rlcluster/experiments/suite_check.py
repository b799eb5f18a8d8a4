"""What would make a cell of a suite fail at its start, found before the first one starts: an environment that does not
exist, a network that does not fit it, kernels that are missing, a process without an environment.
"""

from __future__ import annotations

from rlcluster import environments
from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.networks.policy import choose_kernels, choose_network
from rlcluster.plan import num_local_ranks, refuse_idle_processes
from rlcluster.settings.schema import EnvSettings, Settings
from rlcluster.system.cores import Cores
from rlcluster.system.errors import UserError


class CellChecker:
    """Describes each environment once, however many cells use it."""

    def __init__(self, own_cores: Cores) -> None:
        self._cores = own_cores
        self._described: dict[str, EnvironmentSpec | UserError] = {}

    def check(self, settings: Settings) -> str:
        """The cell's network; raises the UserError with which the cell would end."""
        spec = self._describe(settings.env)
        network = choose_network(settings.policy, spec)
        choose_kernels(settings.hardware.kernels, network, spec)
        if settings.mode == "parallel":
            refuse_idle_processes(settings, settings.given_processes or num_local_ranks(settings, self._cores))
        return network

    def _describe(self, env: EnvSettings) -> EnvironmentSpec:
        key = env.model_dump_json(exclude={"seed", "num_envs"})
        if key not in self._described:
            try:
                self._described[key] = environments.describe(env)
            except UserError as error:
                self._described[key] = error
        described = self._described[key]
        if isinstance(described, UserError):
            raise described
        return described
