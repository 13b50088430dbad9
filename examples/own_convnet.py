"""Your own network on your own photos, from nothing to an adapted answer.

    python examples/own_convnet.py PHOTOS IMAGE

PHOTOS has a folder for each class; IMAGE is the photo to classify.
"""

import sys

import torch
from torch import nn

import mt3
from mt3.data.image_files import read_image


def main(photos: str, image: str) -> tuple[mt3.MT3Model, torch.Tensor, torch.Tensor]:
    data = mt3.data.load_folder(photos, size=48)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU()
    )
    model = mt3.MT3Model(net, data.num_classes, size=48, classes=list(data.classes))
    mt3.train(model, data, "mt3", start="supervised:20")
    pixels = torch.tensor(read_image(image, 48)[0]).permute(2, 0, 1)[None]
    return model, pixels, mt3.Adapter(model)(pixels)


if __name__ == "__main__":
    model, _, logits = main(*sys.argv[1:])
    print(model.classes[int(logits.argmax())])
