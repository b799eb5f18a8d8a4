"""Compiles the kernels during the package build, and packs configs/ as the presets; the rest is in pyproject.toml.
Without a compiler the kernels are skipped, and everything runs on PyTorch.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))
from rlcluster.networks.kernels.build import LIBRARY, SOURCES, NoCompilerError, build

ROOT = Path(__file__).parent
NAME = f"rlcluster.networks.kernels.{LIBRARY.stem}"


class BuildKernels(build_ext):
    """Builds one plain shared library. It does not use Python's API, so its name has no Python version tag."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + LIBRARY.suffix

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name))
        try:
            build(output)
        except NoCompilerError as error:
            print(f"warning: the kernels are skipped, PyTorch is used instead: {error}", file=sys.stderr)
            for old in (output, LIBRARY):  # an earlier build may not match these sources
                old.unlink(missing_ok=True)


class BuildPackage(build_py):
    """Packs the files of configs/ as rlcluster/presets/. An editable installation reads them where they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for file in sorted((ROOT / "configs").glob("*.yaml")):
                target = Path(self.build_lib, "rlcluster", "presets", file.name)
                self.mkpath(str(target.parent))
                self.copy_file(str(file), str(target))


files = [str(file.relative_to(ROOT)) for file in sorted(SOURCES.iterdir())]
sources, headers = [f for f in files if f.endswith(".cpp")], [f for f in files if f.endswith(".hpp")]
setup(
    cmdclass={"build_ext": BuildKernels, "build_py": BuildPackage},
    ext_modules=[Extension(NAME, sources, depends=headers, optional=True)],
)
