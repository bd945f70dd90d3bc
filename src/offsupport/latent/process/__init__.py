"""Data-generating processes z = [c, s] -> x, their generators, and runs drawn from them."""

from offsupport.latent.process.process import Process as Process
from offsupport.latent.process.process import preset as preset
