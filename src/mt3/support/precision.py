"""Which precision a device is made for."""

import torch

CPU_UNITS = ("avx512_bf16", "amx_bf16")  # what multiplies bfloat16 faster than float32; without, it is slower


def choose_precision(device: torch.device) -> tuple[str, str]:
    """bfloat16 where the device has units for it, else float32; and why, in a few words."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bfloat16", "the GPU computes it") if fast else ("float32", "the GPU only emulates bfloat16")
    if device.type != "cpu":
        return "float32", f"bfloat16 is not known to be fast on {device.type}"
    look = getattr(torch.cpu, "get_capabilities", None)  # of recent versions of PyTorch
    units = [unit for unit in CPU_UNITS if look is not None and look().get(unit)]
    return ("bfloat16", f"the processor has {units[0]}") if units else ("float32", "the processor has no units for it")
