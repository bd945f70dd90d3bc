"""A folder of images in, predictions or a diagnosis out: what the command line calls, and Python users too."""

from offsupport.serving.folder import FolderResult, Prediction, adapt_folder
from offsupport.serving.folder_diagnosis import FolderDiagnosis, diagnose_folder
from offsupport.serving.image_files import ImageFiles, walk_images
from offsupport.serving.source_model import SourceModel

__all__ = [
    "FolderDiagnosis",
    "FolderResult",
    "ImageFiles",
    "Prediction",
    "SourceModel",
    "adapt_folder",
    "diagnose_folder",
    "walk_images",
]
