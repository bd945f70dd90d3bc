"""Common image corruptions (Hendrycks and Dietterich, 2019), batched and seeded."""
