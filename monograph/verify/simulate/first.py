"""The simulation that comes before what costs more: ranks, a job, a plan that somebody follows."""

from monograph.errors import EXIT_FAILED, MonographError
from monograph.parallel.mesh import Mesh
from monograph.system.console import make_console, styled
from monograph.train.config import TrainerConfig
from monograph.verify.simulate.run import MeshSimulation, simulate
from monograph.verify.simulate.show import describe_mesh


class WrongNumbers(MonographError):
    """A mesh on which the step computes something else than on one device."""

    exit_code = EXIT_FAILED


def simulate_first(config: TrainerConfig, mesh: Mesh, *, instead: str) -> str:
    """One line on what the mesh computes; an error where that is not what one device computes.

    A run that cannot be simulated is no error: the line says why. `instead` goes on all the same.
    """
    return conclude(try_simulation(config, mesh), config, instead=instead)


def try_simulation(config: TrainerConfig, mesh: Mesh) -> MeshSimulation | str:
    """The simulation of a small copy, or why there is none."""
    make_console(stderr=True).print(styled((f"simulating {describe_mesh(mesh)} in this process ...", "dim")))
    try:
        return simulate(config, mesh)
    except Exception as error:
        what = error.what if isinstance(error, MonographError) else f"{type(error).__name__}: {error}"
        return f"not simulated: {what.splitlines()[0]}"


def conclude(found: MeshSimulation | str, config: TrainerConfig, *, instead: str) -> str:
    """The line of a simulation; an error where it shows wrong numbers."""
    if isinstance(found, str):
        return found
    if not found.is_equal:
        raise WrongNumbers(
            f"{describe_mesh(found.mesh)}, simulated: the numbers are not those of one device",
            why=found.blame,
            do=f"monograph verify --simulate with these flags says more; {instead}",
        )
    return describe_briefly(found, config)


def describe_briefly(found: MeshSimulation, config: TrainerConfig) -> str:
    """The verdict on a mesh without faults, what it is about, and what it is not."""
    blocks = f"{getattr(found.config.model, 'n_layers', 'all')} of {getattr(config.model, 'n_layers', 'all')} blocks"
    covered = [checked.after for checked in found.structures if checked.is_complete]
    own = f"; the run's own graph has the same ops ({', '.join(covered)})" if covered else ""
    sizes = "" if covered or not found.structures else "the run's own sizes, "
    return (
        f"simulated, equal to one device in fp64: an update on {describe_mesh(found.mesh)} of a small copy, "
        f"{blocks}{own}; not simulated: {sizes}GPU kernels, rounding, data, checkpoints"
    )
