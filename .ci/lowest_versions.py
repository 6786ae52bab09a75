"""Print the lowest release of everything that users of graphkit install, as constraints for pip."""

from importlib.metadata import requires

from packaging.requirements import Requirement

for requirement in map(Requirement, requires("graphkit") or ()):
    if not requirement.extras and "dev" not in str(requirement.marker):
        print(f"{requirement.name}=={str(requirement.specifier).removeprefix('>=')}")
