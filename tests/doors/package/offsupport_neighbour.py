"""A neighbour's package: one method, one corruption, one data set, one table."""

import numpy as np

from offsupport import register_corruption, register_dataset, register_method
from offsupport.functional import entropy
from offsupport.methods import Adapter, MethodInfo, StepConfig
from offsupport.nn import affine_parameters
from offsupport.studies import Table, below_claims, expand, register_table


@register_method(
    MethodInfo(
        name="calm",
        summary="Minimises the entropy of the surer half of a batch.",
        paper="not published",
        adapts="scale and shift of norm layers",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step; group and layer norm: a step each",
    ),
    StepConfig,
)
class Calm(Adapter):
    def trainable(self):
        return affine_parameters(self.model)

    def step(self, x):
        logits = self.network(x)
        h = entropy(logits)
        self.descend(h[h <= h.median()].mean())
        return logits


@register_corruption("dim", severities=[0.9, 0.7, 0.5, 0.3, 0.1])
def dim(images, rng, share):
    """Keep a share of the light, with a grain of its own on each image."""
    grain = rng.normal("grain", *images.shape[1:])
    return np.clip(images * share + grain, 0, 255).astype(np.uint8)


@register_dataset("stripes", "bars that lie or stand, 32x32", splits=["test", "train"], needs_root=False)
def stripes(root, split):
    rng = np.random.default_rng({"test": 0, "train": 1}[split])
    labels = np.arange(64) % 2
    bars = np.arange(32) + rng.integers(0, 8, (64, 1))
    lying = np.repeat((bars % 8 < 4)[:, :, None], 32, axis=2)
    grey = np.where(labels[:, None, None] == 0, lying, lying.transpose(0, 2, 1)) * np.uint8(200)
    return np.repeat(grey[..., None], 3, axis=3), labels, ["lying", "standing"]


def grid(scale, options):
    methods = options.methods or ("source", "calm")
    return expand({"method": methods, "severity": (1, 5)}, dataset="stripes-c", corruption="dim", model="digits-small")


register_table(
    Table(
        name="calm-on-stripes",
        title="Calm steps where the light goes",
        scales={"smoke": "64 images, two severities, a network that was trained on digits"},
        options=frozenset({"methods"}),
        grid=grid,
        claims=lambda records: below_claims(records, [("calm", "source")]),
    )
)
