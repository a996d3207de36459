"""The same step on one device, with nothing of the parallel code in it: whole parameters, batch and backward."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from monograph.models.balance import update_expert_bias
from monograph.models.init import initialize, materialize
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.step import to_device
from monograph.train.update import IGNORED_LABEL
from monograph.verify.trace import StepTrace, snapshot
from monograph.verify.watch import recorded


class Reference:
    """A model on one device that is trained beside the sharded one."""

    def __init__(self, config: TrainerConfig, device: torch.device) -> None:
        with torch.device("meta"):
            self.model = config.model.build()
        materialize(self.model, device=device, dtype=torch.float32)
        initialize(self.model, seed=config.debug.seed)
        self.device = device
        self.config = config
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = config.optimizer.build(parameters=self.parameters)

    def run(self, batches: Sequence[Batch]) -> StepTrace:
        """Forward and backward over all micro-batches of all ranks."""
        model = self.model
        names = ["tokens", "labels"] + (["positions", "documents"] if model.config.mask == "document" else [])
        valid = torch.tensor(sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in batches), device=self.device)
        trace = StepTrace(before=snapshot(self.parameters))
        with recorded(model, is_open=self.config.compile.mode == "eager") as recording:
            for batch in batches:
                tensors = to_device(batch, self.device)
                output = model(**{name: tensors[name] for name in names}, valid_tokens=valid)
                output.value.backward()
                trace.loss += output.value.item()
                if output.loads is not None:
                    model.expert_load.add_(output.loads)
        trace.outputs = {path: torch.cat(parts) for path, parts in recording.outputs.items()}
        trace.output_gradients = {path: torch.cat(parts) for path, parts in recording.gradients.items()}
        for path, parts in recording.choices.items():
            trace.choices[path] = torch.cat(parts).unflatten(0, trace.outputs["embedding"].shape[:2])
        trace.gradients = snapshot({name: _gradient(p) for name, p in self.parameters.items()})
        trace.grad_norm = torch.nn.utils.get_total_norm([_gradient(p) for p in self.parameters.values()]).item()
        return trace

    def update(self, trace: StepTrace, gradients: Mapping[str, Tensor], lr: float) -> None:
        """Update with the sharded run's gradients, and add the result to `trace`.

        Adam divides by the gradient's own size: fed with its own gradients, this model would turn rounding noise in
        elements near zero into visible differences. Fed with the same ones, any difference is the update's fault.
        """
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name].to(self.device, parameter.dtype, copy=True)
        norm = torch.nn.utils.get_total_norm([_gradient(p) for p in self.parameters.values()])
        if self.config.training.max_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), self.config.training.max_norm, norm)
        update_expert_bias(self.model, self.model.config.find_bias_update_rate())
        self.optimizer.step(lr, loss=torch.tensor(trace.loss), grad_norm=norm)
        self.optimizer.clear_gradients()
        trace.after = snapshot(self.parameters) | snapshot(buffers_of(self.model))


def buffers_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The persistent buffers: what training changes besides parameters."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in model.state_dict().items() if name not in parameters}


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
