"""The long description of the package, and compiled code in its wheel. Everything else stands in pyproject.toml.

The long description is README.md with absolute links: a package index shows the text and has none of the files that it points to.
The address is `Repository` of [project.urls], the files are those of the version's tag.

A wheel brings the C code of src/cohort/ops/fused/native compiled, for whoever has no compiler. Where it is built without one, it
is a wheel for every machine, and the code is compiled at the first use, as in a checkout.
"""

import importlib.util
import platform
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
LINK = re.compile(
    r"""(?P<image>!)?(?P<text>\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\])\((?P<path>[^)\s]+)\)|(?P<tag>(?:src|href)=")(?P<file>[^"]+)"""
)
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|#|//")


def make_links_absolute(text: str, repository: str, version: str) -> str:
    """Every link to a file of the repository with its address; pictures with that of the bare file."""

    def find_address(path: str, is_image: bool) -> str:
        return (
            path
            if ABSOLUTE.match(path)
            else f"{repository}/{'raw' if is_image else 'blob'}/v{version}/{path.removeprefix('./')}"
        )

    def replace(match: re.Match[str]) -> str:
        if match["tag"]:
            return match["tag"] + find_address(match["file"], match["tag"].startswith("src"))
        inner = LINK.sub(replace, match["text"][1:-1])  # a picture may itself be the text of a link
        return f"{match['image'] or ''}[{inner}]({find_address(match['path'], bool(match['image']))})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)  # every second one is code
    return "".join(part if place % 2 else LINK.sub(replace, part) for place, part in enumerate(parts))


def load_building():
    """building.py without its package, which needs torch."""
    place = importlib.util.spec_from_file_location("building", HERE / "src/cohort/ops/fused/building.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def find_platform(files: list[Path]) -> str:
    """The tag of a platform on which these libraries load: the newest version of glibc that one of them names."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", b"".join(file.read_bytes() for file in files))
    system = "manylinux_{}_{}".format(*max((int(major), int(minor)) for major, minor in versions)) if versions else "linux"
    return f"{system}_{platform.machine()}"


class BuildWithNative(build_py):
    """Compiles beside the copied sources, for a wheel and not for a checkout."""

    prebuilt: list[Path] = []

    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib, "cohort/ops/fused/native/prebuilt")
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier build
        if self.editable_mode:
            return
        building = load_building()
        folder.mkdir()
        try:
            self.prebuilt = [*building.compile_prebuilt(folder)]
        except (building.NoNative, OSError, subprocess.SubprocessError) as problem:
            print(f"nothing is compiled for this wheel: {problem}")
        if not self.prebuilt:
            shutil.rmtree(folder)


class WheelWithNative(bdist_wheel):
    """Says on what it runs: on any machine without compiled code, on machines like this one with it."""

    def run(self) -> None:
        self.run_command("build")
        if self.get_finalized_command("build_py").prebuilt:
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: True  # the folder for libraries, which some systems keep apart
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        prebuilt = self.get_finalized_command("build_py").prebuilt
        return ("py3", "none", find_platform(prebuilt)) if prebuilt else super().get_tag()


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=make_links_absolute(readme, project["urls"]["Repository"], project["version"]),
        long_description_content_type="text/markdown",
        cmdclass={"build_py": BuildWithNative, "bdist_wheel": WheelWithNative},
    )
