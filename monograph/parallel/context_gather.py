"""What context-parallel ranks gather for latent attention: keys and values, or the latents that they are made of.

Latents are smaller, and cost matmuls on every rank; which takes less time depends on links, heads and the degree.
Loads without torch.
"""

from dataclasses import replace

from monograph.axes import Axis, Group
from monograph.machine.device import Machine
from monograph.models.model_config import LatentSizes, ModelConfig
from monograph.parallel.config import ContextGather
from monograph.parallel.mesh import Mesh

_SENT_BYTES = 2 + 2 + 4
"""Of every channel of a token: forward gathers bf16, backward gathers it again and reduces gradients in fp32."""
_MATMULS, _MATMULS_OF_PART = 4, 3
"""With latents of whole sequences: forward, again in backward, and two gradients; with a rank's own no second time."""


def decide_gather(mesh: Mesh, model: ModelConfig, *, tokens: int, dtype: str, machine: Machine) -> Mesh:
    """The mesh with what latent attention gathers decided, by the estimated time of a layer where it is `auto`.

    `tokens` are those of a micro-batch, over all ranks that share its sequences.
    """
    sizes = model.find_latent_sizes()
    if mesh.cp_gather != "auto":
        return mesh
    if sizes is None or mesh.cp == 1 or mesh.cp_method != "all_gather":
        return replace(mesh, cp_gather="keys_values")
    return replace(mesh, cp_gather=choose_gather(sizes, mesh, tokens=tokens, dtype=dtype, machine=machine))


def choose_gather(sizes: LatentSizes, mesh: Mesh, *, tokens: int, dtype: str, machine: Machine) -> ContextGather:
    """What takes less time to gather, and to compute after it."""
    heads = sizes.heads // mesh.tp
    kept = find_send_seconds(heads * (sizes.key + sizes.value), tokens, mesh, machine)
    sent = find_send_seconds(sizes.latent + sizes.shared, tokens, mesh, machine)
    one = 2.0 * tokens * sizes.latent * heads * (sizes.key - sizes.shared + sizes.value)
    extra = _MATMULS * machine.matmul_seconds(one, dtype)
    extra -= _MATMULS_OF_PART * machine.matmul_seconds(one / mesh.cp, dtype)
    return "latent" if sent + extra < kept else "keys_values"


def find_send_seconds(channels: int, tokens: int, mesh: Mesh, machine: Machine) -> float:
    """How long the collectives of a layer take that send so many channels of every token."""
    sent = _SENT_BYTES * channels * tokens * (mesh.cp - 1) / mesh.cp
    span = 1 + (mesh.cp - 1) * mesh.stride(Axis.CP)
    return machine.collective_seconds(sent, span, ranks=mesh.group_size(Group.CP), is_ring=True)
