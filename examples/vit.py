"""A vision transformer of Hugging Face's transformers: trained as usual, then given an objective to adapt with."""

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification

import mt3

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def main(steps: int = 60) -> tuple[mt3.MT3Model, torch.Tensor, torch.Tensor]:
    labels, photos = np.arange(60) % 3, np.random.RandomState(0).randint(0, 60, (60, 32, 32, 3)).astype(np.uint8)
    photos[np.arange(60), :, :, labels] += 120  # the class is the photo's colour
    images = torch.from_numpy(photos).permute(0, 3, 1, 2) / 255
    vit = ViTForImageClassification(ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=3))
    optimizer = torch.optim.AdamW(vit.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        vit((images - 0.5) / 0.5, labels=torch.from_numpy(labels)).loss.backward()
        optimizer.step()
    model = mt3.add_objective(vit, "byol", normalisation=((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), size=32)
    mt3.train(model, (photos, labels), "mt3", epochs=1)
    return model, images[:3], mt3.Adapter(model)(images[:3])


if __name__ == "__main__":
    print(main()[2].softmax(1))
