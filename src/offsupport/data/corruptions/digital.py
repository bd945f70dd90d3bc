"""Digital: contrast, elastic transform, pixelation and JPEG compression."""

from __future__ import annotations

import numpy as np

from offsupport.data.corruptions.catalogue import Images, corruption
from offsupport.data.corruptions.filters import truncate
from offsupport.data.corruptions.seeding import Streams


@corruption("contrast")
def contrast(images: Images, streams: Streams, factor: float) -> Images:
    """Pull each channel towards its mean over the image."""
    # Sums of integers are exact, so that the mean does not depend on the order of summation.
    total = images.sum(axis=(1, 2), keepdims=True, dtype=np.int64)
    mean = total / (images.shape[1] * images.shape[2])
    return truncate((images - mean) * factor + mean)
