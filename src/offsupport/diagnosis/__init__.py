"""A network and images: how far from the source, where in the image, which kind of shift."""

from offsupport.diagnosis.network import ModelDiagnosis, diagnose_model

__all__ = ["ModelDiagnosis", "diagnose_model"]
