"""What weight decay shrinks, by the names that others gave the tensors."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.models.hf_families import find_family_of
from monograph.models.weight_decay import find_decayed
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step
from monograph.train.build_optimizer import build_optimizer
from tests.execute.updates import CPU
from tests.kit.tiny import RECIPES, tiny


@pytest.mark.parametrize("model", RECIPES)
def test_an_update_without_gradients_shrinks_every_matrix_and_no_bias_or_norm(model, tmp_path):
    config = tiny(model, tmp_path, {"optimizer.weight_decay": 0.5})
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config, groups)
        optimizer = build_optimizer(config.plan_optimizer(), step)
        for parameter in step.parameters.values():
            parameter.data.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step(0.1, loss=torch.tensor(1.0), grad_norm=torch.tensor(1.0))
        shrunk = {name for name, parameter in step.parameters.items() if not parameter.eq(1.0).all()}
    matrices = {name for name, parameter in step.parameters.items() if parameter.ndim >= 2}
    theirs = {entry.ours: entry.theirs[0] for entry in find_family_of(config.model).entries(config.model)}
    assert shrunk == {name for name in matrices if not theirs[name].endswith("bias")}


def test_a_tied_matrix_is_named_once_and_a_module_spares_its_own():
    class Scales(torch.nn.Module):
        no_decay = ("weight",)

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 3))

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Scales(), torch.nn.Linear(3, 3))
    model[2].weight = model[0].weight
    assert find_decayed(model) == {"0.weight"}
    model[1].no_decay = ("wight",)
    with pytest.raises(ConfigError, match="1 names wight in no_decay"):
        find_decayed(model)
