"""Machines for tests: one number for all dtypes, and one for all links."""

from monograph.machine.device import Machine


def make_machine(*, flops: float, memory: float, link: float, latency: float, name: str = "made up") -> Machine:
    """Rates in FLOP/s and bytes a second, reached in full; latency in seconds."""
    return Machine(
        name=name,
        float32_tflops=flops / 1e12,
        bfloat16_tflops=flops / 1e12,
        float8_tflops=flops / 1e12,
        matmul_fraction=1.0,
        memory_gb=1.0,
        memory_gb_per_second=memory / 1e9,
        memory_fraction=1.0,
        link_gb_per_second=link / 1e9,
        network_gb_per_second=link / 1e9,
        host_gb_per_second=link / 1e9,
        collective_latency_us=latency * 1e6,
        devices_per_node=8,
    )


SLOW = make_machine(flops=100.0, memory=1000.0, link=10.0, latency=1.0)
"""So slow that times can be worked out by hand."""
