"""Making corrupted data sets in their official layouts."""

from offsupport.data.making.make import LAYOUTS, MANIFEST, make

__all__ = ["LAYOUTS", "MANIFEST", "make"]
