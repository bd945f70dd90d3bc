"""Making corrupted data sets in their official layouts."""

from offsupport.data.making.work import LAYOUTS, MANIFEST, make

__all__ = ["LAYOUTS", "MANIFEST", "make"]
