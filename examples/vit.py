"""A vision transformer of Hugging Face's transformers: trained as usual, then given an objective to adapt with."""

import torch
from transformers import ViTConfig, ViTForImageClassification

import mt3

labels, photos = torch.arange(60) % 3, torch.randint(60, (60, 32, 32, 3), dtype=torch.uint8)
photos[torch.arange(60), :, :, labels] += 120  # the class is the photo's colour
images = photos.permute(0, 3, 1, 2) / 255
vit = ViTForImageClassification(ViTConfig(hidden_size=48, num_hidden_layers=2, image_size=32, num_labels=3))
optimizer = torch.optim.AdamW(vit.parameters(), lr=1e-3)
for _ in range(60):
    vit((images - 0.5) / 0.5, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model = mt3.add_objective(vit, "byol", normalisation=((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), size=32)
mt3.train(model, (photos.numpy(), labels), "mt3", epochs=1, inner_lr=0.01, test_lr=0.01)  # few photos, so short steps
print(mt3.Adapter(model)(images[:3]).softmax(1))
