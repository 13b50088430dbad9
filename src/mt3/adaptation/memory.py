"""How many images go through a network at once, and how many the machine can hold."""

from mt3.models.call import Network
from mt3.support.errors import InputError
from mt3.support.machine import free_memory
from mt3.support.threads import count_threads

CPU_BUDGET = 4 << 20  # bytes of a stack's largest activation
DEVICE_BUDGET = 64 << 20


def stack_size(model: Network, items: int, images: int, size: int) -> int:
    """How many tasks or images to adapt to at once, each with that many images of `size` pixels in its passes.

    Together they keep the largest activation within a budget: on a CPU what its caches hold, since more than that is no
    faster one by one; on an accelerator, what fits into its memory some hundred times. There is one for each thread.
    """
    budget = CPU_BUDGET if model.device.type == "cpu" else DEVICE_BUDGET
    largest = images * model.backbone.largest(size) * model.dtype.itemsize
    return max(1, min(budget // largest, -(-items // count_threads(model, items))))


def check_memory(model: Network, images: int, size: int) -> None:
    """Refuse to adapt with more images in a pass than the machine can hold; a system may end the process instead.

    Counted is what surely lies in memory. An accelerator says by itself what does not fit.
    """
    needed = images * model.backbone.kept(size) * model.dtype.itemsize
    if model.device.type == "cpu" and needed > (there := free_memory()):
        raise InputError(
            f"Adapting with {images} images in a pass takes at least {needed / 2**30:.1f} GB of memory, and "
            f"{there / 2**30:.1f} GB are free; lower views or stack."
        )
