"""Names of the mesh axes and of the process groups along them. Logical names only: they are all a graph may contain."""

from enum import StrEnum


class Axis(StrEnum):
    """A direction of the device mesh.

    Dense parameters see the ranks as pp x dp_replicate x fsdp x tp, where fsdp is dp_shard x cp. Routed experts see
    the same ranks as pp x dp_replicate x efsdp x ep x etp.
    """

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    FSDP = "fsdp"
    DP_SHARD = "dp_shard"
    CP = "cp"
    TP = "tp"
    EFSDP = "efsdp"
    EP = "ep"
    ETP = "etp"


class Group(StrEnum):
    """A process group by its logical name. Two names over the same ranks are two communicators that can run at once."""

    FSDP_GATHER = "fsdp_gather"
    FSDP_SCATTER = "fsdp_scatter"
    EFSDP_GATHER = "efsdp_gather"
    EFSDP_SCATTER = "efsdp_scatter"
    DP_REPLICATE = "dp_replicate"
    TP = "tp"
    TP_GRADS = "tp_grads"
    EP = "ep"
    EP_COUNTS = "ep_counts"
    EP_DISPATCH = "ep_dispatch"
    ETP = "etp"
    CP = "cp"
    PP = "pp"
    SEQUENCE = "sequence"
    PP_UP = "pp_up"
    PP_DOWN = "pp_down"
    BATCH = "batch"
    SHARDS = "shards"
    STAGE = "stage"
    WORLD = "world"


POINT_TO_POINT = (Group.PP_UP, Group.PP_DOWN)
"""Groups that send and receive only: to later pipeline ranks, and to earlier ones."""


SAME_LINK = {Group.EP_DISPATCH.value: Group.EP.value}
"""Groups whose collectives share the links of another's: both may be under way, and the links carry their sum."""


COORDS = (Axis.PP, Axis.DP_REPLICATE, Axis.FSDP, Axis.CP, Axis.TP, Axis.EFSDP, Axis.EP, Axis.ETP)
"""The order of the entries in the coordinate tensor."""
