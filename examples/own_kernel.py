"""An op of your own: squared ReLU with a bias, one node of a graph and one kernel on a GPU.

python -m examples.own_kernel
"""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.kernels.check_op import check_op
from monograph.kernels.custom_op import custom_op


def reference_bias_relu2(x: Tensor, bias: Tensor) -> Tensor:
    """relu(x + bias) squared, in torch's ops: what a CPU runs, and what the kernel is compared with."""
    return (x + bias).relu().square()


def reference_bias_relu2_backward(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    """The gradient of x; that of the bias is its sum over rows."""
    return grad * 2 * (x + bias).relu()


def make_examples() -> list[tuple[Tensor, Tensor]]:
    """Arguments to check the op with: rows with gaps between them, and no rows at all."""
    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(6, 32, generator=generator), torch.randn(20, generator=generator)
    return [(x[:, :20], bias), (x[:0, :20], bias)]


bias_relu2_backward = custom_op(
    "own_kernel::bias_relu2_backward(Tensor grad, Tensor x, Tensor bias) -> Tensor",
    reference=reference_bias_relu2_backward,
    kernel="examples.own_kernel_on_gpu:bias_relu2_backward",
    examples=lambda: [(torch.ones_like(x), x, bias) for x, bias in make_examples()],
)


def differentiate(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Backward: called with the result's gradient and what `save` names; one gradient per argument."""
    of_x = bias_relu2_backward(grad, x, bias)
    return of_x, of_x.sum(0)


bias_relu2 = custom_op(
    "own_kernel::bias_relu2(Tensor x, Tensor bias) -> Tensor",
    reference=reference_bias_relu2,
    kernel="examples.own_kernel_on_gpu:bias_relu2",
    backward=differentiate,
    save=("x", "bias"),
    examples=make_examples,
)


def compute_step(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """A tiny training step: a loss and the gradients of weight and bias."""
    weight, bias = weight.detach().requires_grad_(), bias.detach().requires_grad_()
    loss = bias_relu2(x @ weight, bias).mean()
    return loss.detach(), *torch.autograd.grad(loss, (weight, bias))


def main() -> None:
    """Check both ops, then capture the step and compare it with eager, bit for bit."""
    for op in (bias_relu2, bias_relu2_backward):
        skipped = check_op(op)
        print(f"{op.name}: checked", *(f"({name} skipped: {reason})" for name, reason in skipped.items()))
    inputs = torch.randn(4, 8), torch.randn(8, 16), torch.randn(16)
    graph = make_fx(compute_step, tracing_mode="fake")(*inputs)
    print(graph.graph)
    assert all(map(torch.equal, graph(*inputs), compute_step(*inputs)))
    print("the captured step equals eager")


if __name__ == "__main__":
    main()
