"""A folder of images in, predictions out: what ``offsupport adapt`` calls, and Python users too."""

from offsupport.serving.folder import FolderResult, Prediction, adapt_folder
from offsupport.serving.image_files import ImageFiles, find_images
from offsupport.serving.source_model import SourceModel

__all__ = ["FolderResult", "ImageFiles", "Prediction", "SourceModel", "adapt_folder", "find_images"]
