"""A service on a Ray cluster: replicas behind one address, each with adapters of its own.

Ray sends a request to any replica, so every replica adapts to its share of each stream, and none waits for another.
What replicas learn is not kept: they come and go, and where state must outlive its process one process is the place.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from offsupport.core.errors import ConfigError
from offsupport.serving.service import open_service


def ray_application(
    model: nn.Module | str, method: str | None = None, *, replicas: int = 2, token: str | None = None, **options: Any
) -> Any:
    """Return an application for ``ray.serve.run``.

    Args:
        model: A classifier, or a name that :func:`offsupport.load_model` knows on every node.
        method: How to adapt.
        replicas: How many processes answer.
        token: What a request must bring as ``Authorization: Bearer TOKEN``.
        **options: As :func:`offsupport.serving.open_service` takes them, without ``state``.
    """
    try:
        serve = import_module("ray.serve")
    except ImportError:
        raise ConfigError("Replicas need Ray Serve.", "Install it: pip install 'offsupport[ray,serve]'") from None
    if options.get("state") is not None:
        raise ConfigError(
            "Replicas come and go, and what they learn is not kept.", "Leave state out, or use offsupport serve."
        )

    def build() -> Any:
        from offsupport.serving.web import make_app  # on the replica: whoever asks for replicas need not serve

        return make_app(open_service(model, method, **options), token=token, closes=True)

    return serve.deployment(serve.ingress(build)()).options(name="offsupport", num_replicas=replicas).bind()
