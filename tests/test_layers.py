"""The tree is the data flow: a module imports only from rows above it, and functions stay short."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlcluster

PACKAGE = Path(rlcluster.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FUNCTION = 50

# What each room, or module next to them, may import; inside a room its modules may import one another.
BELOW = {
    "system": (),
    "settings": ("system",),
    "plan": ("system", "settings"),
    "runs": ("system", "settings", "plan"),
    "monitor": ("system", "settings", "plan", "runs"),
    "exchange": ("system",),
    "environments": ("system", "settings"),
    "networks": ("system", "settings", "environments"),
    "learning": ("system", "settings", "runs", "exchange", "environments", "networks"),
    "profiling": ("system", "settings", "plan", "networks"),
    "training": (
        *("system", "settings", "plan", "runs", "monitor", "exchange", "environments", "networks", "learning"),
        *("profiling", "evaluation"),
    ),
    "evaluation": ("system", "settings", "runs", "environments", "networks", "reports"),
    "reports": ("system", "settings", "runs"),
    "experiments": (
        *("system", "settings", "plan", "runs", "exchange", "environments", "networks", "profiling", "reports"),
    ),
    "cluster": ("system", "settings", "plan", "runs", "experiments"),
    "flags": ("system", "settings"),
    "api": ("system", "settings", "plan", "flags", "runs", "training", "evaluation", "reports"),
    "cli": (
        "system",
        "settings",
        "plan",
        "flags",
        "runs",
        "monitor",
        "training",
        "evaluation",
        "reports",
        "profiling",
        "experiments",
        "cluster",
    ),
    "__main__": ("system", "cli"),
}


def layer_of(file: Path) -> str:
    """`environments` for environments/procgen.py, `cli` for cli.py."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return getattr(test, "id", None) == "TYPE_CHECKING" or getattr(test, "attr", None) == "TYPE_CHECKING"


def running_code(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, also inside functions, but not what only the type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            for other in node.orelse:
                yield other
                yield from running_code(other)
        else:
            yield node
            yield from running_code(node)


def imported_layers(tree: ast.AST) -> set[str]:
    """The rows that a module imports from: `settings` for `from rlcluster.settings.schema import Settings`."""
    layers = set()
    for node in running_code(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        layers |= {name.split(".")[1] for name in names if name.startswith("rlcluster.")}
    return layers - {"__version__"}


def test_every_room_has_a_rule_and_every_rule_a_room():
    assert {layer_of(file) for file in FILES} - {"__init__"} == set(BELOW)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_imports_only_from_the_rooms_below_it(file):
    layer = layer_of(file)
    allowed = set() if layer == "__init__" else {*BELOW[layer], layer}
    assert imported_layers(ast.parse(file.read_text())) <= allowed


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_says_what_it_is_and_no_function_is_long(file):
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: node.end_lineno - node.lineno + 1 for node in functions}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_imports_are_found_in_functions_but_not_where_only_the_type_checker_looks():
    source = """
import rlcluster
import rlcluster.networks.policy as p
from rlcluster import __version__
from rlcluster.system import machine
from rlcluster.environments.procgen import SPEC
if TYPE_CHECKING:
    from rlcluster.cli import main
else:
    from rlcluster.system.clock import Stopwatch
def f():
    with a:
        from rlcluster.training.train import train
    import torch.rlcluster.console
"""
    assert imported_layers(ast.parse(source)) == {"networks", "system", "environments", "training"}
