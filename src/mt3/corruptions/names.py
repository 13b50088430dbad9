"""The corruptions' names, for those who do not corrupt."""

# the 15 the paper reports
PAPER = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
# the benchmark's other four, kept for tuning
HELD_OUT = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
