"""A model that is no decoder: latents instead of tokens, two kinds of blocks, a loss and state of its own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import monograph as mg
from monograph.parts import Constant
from monograph.recipes.llama3 import llama3_debugmodel

CHANNELS = 8


class DoubleBlock(nn.Module):
    """Two values that read each other; both are carried to the next block."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.to_image, self.to_noise = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.gain = nn.Parameter(torch.ones(dim))

    def plan_init(self):
        return {"gain": Constant(0.5)}

    def forward(self, image, noise, scale):
        image = image + self.to_image(self.norm(noise)) * scale
        return image, noise + self.to_noise(image).tanh() * self.gain, image.detach().abs().mean()


class SingleBlock(nn.Module):
    """One value, returned as it is: not in a tuple."""

    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim, bias=False)

    def forward(self, image, scale):
        return image + torch.nn.functional.gelu(self.linear(image)) * scale


class Denoiser(mg.Model):
    """Predicts the noise that was added to latents."""

    @dataclass(kw_only=True, slots=True)
    class Config(mg.ModelConfig):
        """A small denoiser."""

        dim: int = 12
        """Width of the blocks."""
        n_layers: int = 5
        """Blocks of each kind."""

    def __init__(self, config):
        super().__init__()
        self.enter = nn.Linear(CHANNELS, config.dim)
        self.double_blocks = nn.ModuleList(DoubleBlock(config.dim) for _ in range(config.n_layers))
        self.single_blocks = nn.ModuleList(SingleBlock(config.dim) for _ in range(config.n_layers))
        self.leave = nn.Linear(config.dim, CHANNELS)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("grid_coords", torch.zeros(CHANNELS), persistent=False)

    def reset(self):
        self.seen.zero_()
        self.grid_coords.copy_(torch.arange(CHANNELS) / CHANNELS)

    @property
    def batch_spec(self):
        latents = mg.BatchTensor(("batch", "sequence", CHANNELS), torch.float32)
        return {"latents": latents, "noise": latents, "times": mg.BatchTensor(("batch",), torch.float32)}

    @property
    def normalizers(self):
        return ("elements",)

    def count_normalizers(self, batch):
        return {"elements": batch["latents"].numel()}

    def units(self):
        return [
            mg.Unit("enter"),
            *mg.blocks_of("double_blocks", self.double_blocks, carry=("image", "other")),
            *mg.blocks_of("single_blocks", self.single_blocks),
            mg.Unit("leave"),
        ]

    def forward(self, latents, noise, times, elements, *, call=mg.call_module):
        scale = times[:, None, None].to(latents.dtype)
        noisy = latents + noise * scale + self.grid_coords
        image = other = call(self.enter, noisy)
        sizes = []
        for block in self.double_blocks:
            image, other, size = call(block, image, other, scale)
            sizes.append(size)
        for block in self.single_blocks:
            image = call(block, image, scale)
        loss = (call(self.leave, image + other).float() - noise).square().sum() / elements
        return mg.StepOutput.of(loss, sizes=torch.stack(sizes))

    def finish_update(self, metrics):
        self.seen.add_(metrics["sizes"].sum())


class Latents(mg.IndexedSource):
    """Random latents by number."""

    @dataclass(kw_only=True, slots=True)
    class Config(mg.IndexedSource.Config):
        """Latents."""

    def count(self, plan):
        return 400

    def load(self, index, plan):
        random = np.random.default_rng(index)
        drawn = random.standard_normal((2, plan.seq_len, CHANNELS), dtype=np.float32)
        return {"latents": np.tanh(drawn[0]), "noise": drawn[1], "times": np.float32(random.random()).reshape(())}


def denoiser():
    """A run of the denoiser."""
    config = llama3_debugmodel()
    config.model = Denoiser.Config()
    config.dataloader.source = Latents.Config()
    config.training.seq_len, config.training.local_batch_size, config.training.steps = 6, 2, 6
    config.training.compute_dtype = "float32"
    config.validator.interval, config.validator.samples, config.checkpoint.interval = 3, 4, 3
    config.optimizer.lr, config.lr_scheduler.warmup_steps, config.lr_scheduler.decay = 0.01, 0, "constant"
    config.metrics.progress, config.debug.device = "off", "cpu"
    config.job.dump_folder = str(Path("outputs") / "denoiser")
    return config
