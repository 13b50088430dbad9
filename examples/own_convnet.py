"""Your own network on your own photos, from nothing to an adapted answer.

    python examples/own_convnet.py PHOTOS IMAGE

PHOTOS has a folder for each class; IMAGE is the photo to classify.
"""

import sys

import torch
from torch import nn

import mt3

data = mt3.data.load_folder(sys.argv[1], size=48)
net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU())
model = mt3.MT3Model(net, data.num_classes, size=48, classes=list(data.classes))
mt3.train(model, data, "mt3", start="supervised:20")
pixels, _ = mt3.data.read_image(sys.argv[2], 48)
images = torch.tensor(pixels).permute(2, 0, 1)[None]
logits = mt3.Adapter(model)(images)
print(data.classes[int(logits.argmax())])
