"""A folder or a live stream of images in, predictions or a diagnosis out: for the command line and for Python."""

from offsupport.serving.folder import FolderResult, Prediction, adapt_folder
from offsupport.serving.folder_diagnosis import FolderDiagnosis, diagnose_folder
from offsupport.serving.image_files import ImageFiles, walk_images
from offsupport.serving.service import Service, open_service
from offsupport.serving.source_model import SourceModel
from offsupport.serving.stream import Answer, Limits

__all__ = [
    "Answer",
    "FolderDiagnosis",
    "FolderResult",
    "ImageFiles",
    "Limits",
    "Prediction",
    "Service",
    "SourceModel",
    "adapt_folder",
    "diagnose_folder",
    "open_service",
    "walk_images",
]
