"""Where an optimizer of a user's own can update: on whole parameters, or on parts of them. Loads without torch."""

from typing import Any

from monograph.config.configurable import find_owner
from monograph.errors import ConfigError
from monograph.parallel.mesh import Mesh


def check_sharded_optimizer(config: Any, mesh: Mesh) -> None:
    """Refuse a rule that needs whole parameters, or does not say whether it does, where ranks have parts of them."""
    kind = type(config.optimizer)
    is_ours = isinstance(kind.owner, str) and kind.owner.startswith("monograph.")  # asking them would load torch
    if mesh.shards == 1 or is_ours:
        return
    rule = find_owner(kind)
    said = find_elementwise(rule)
    if said:
        return
    sharded = f"parameters are sharded over {mesh.shards} ranks"
    whole = "with --parallelism.data_parallel_shard_degree 1 and replicas alone every rank has whole parameters"
    if said is None:
        raise ConfigError(
            f"{rule.__qualname__} does not say whether it is elementwise, and {sharded}",
            why="a rank updates its part of a parameter by itself, which is right only where the update of an element "
            "depends on nothing but that element, its gradient and its state",
            do="write elementwise = True into the class if that is so (monograph verify checks it), and elementwise = "
            f"False if it needs whole parameters, such as Muon or a norm; {whole}",
        )
    raise ConfigError(
        f"{rule.__qualname__} is not elementwise, and {sharded}",
        why="its update needs the whole parameter, and a rank has a part of it",
        do=f"{whole}; or an elementwise optimizer",
    )


def find_elementwise(rule: type) -> bool | None:
    """What the class says, or one that it derives its update from: who writes another update has to say it anew."""
    for each in rule.__mro__:
        if "elementwise" in vars(each):
            said: bool | None = vars(each)["elementwise"]
            return said
        if vars(each).keys() & {"update", "step"}:
            return None
    return None
