"""A folder of images in, predictions out: what ``offsupport adapt`` calls, and Python users too."""
