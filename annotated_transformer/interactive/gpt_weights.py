"""The weights of the GPT that runs in the page: eight bits each, in scripts that a page loads by itself.

Each row of a matrix becomes whole numbers from -127 to 127 and one scale: a weight is their product. Vectors
stay float32. The result is a safetensors file again: `name` holds the whole numbers, `name.scale` the scales.

`quantize` and `scripts` need the standard library only: the book is built without torch.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..gpt import GPT

MOST = 4_000_000  # bytes of the quantised weights
PARTS = 8  # scripts that hold them, so that loading shows progress


def read_tensors(content: bytes) -> dict[str, tuple[list[int], array]]:
    """Read shape and float32 numbers of each tensor of a safetensors file, without its package.

    Args:
        content: the file; its tensors are bfloat16 or float32.

    Raises:
        ValueError: when the file is truncated or has another type of number.
    """
    try:
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
    except ValueError as error:
        raise ValueError(f"content must be a safetensors file: {error}") from None
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, stop = entry["data_offsets"]
        raw = content[end + begin : end + stop]
        if len(raw) != stop - begin:
            raise ValueError(f"content must be a whole safetensors file, {name} is cut off")
        if entry["dtype"] == "BF16":  # the upper half of a float32
            raw, halves = bytearray(2 * len(raw)), raw
            raw[2::4], raw[3::4] = halves[0::2], halves[1::2]
        elif entry["dtype"] != "F32":
            raise ValueError(f"content must have bfloat16 or float32 numbers, got {entry['dtype']} in {name}")
        numbers = array("f")
        numbers.frombytes(raw)
        tensors[name] = entry["shape"], numbers
    return tensors


def quantize_row(row: array) -> tuple[float, array]:
    """Round a row of float32 numbers to multiples of a scale: the highest magnitude becomes 127.

    Returns:
        The scale, which is a float32, and the whole numbers.

    Raises:
        ValueError: when a number is not finite.
    """
    highest = max(max(row), -min(row))
    if not math.isfinite(math.fsum(row)):
        raise ValueError("row must have finite numbers")
    scale = array("f", [highest / 127])[0] or 1.0
    return scale, array("b", [round(x / scale) for x in row])


def quantize(content: bytes) -> bytes:
    """Quantise a safetensors file of bfloat16 or float32 weights; the same weights give the same bytes.

    Raises:
        ValueError: when the file cannot be read, or a weight is not finite.
    """
    matrices, vectors = {}, {}
    for name, (shape, numbers) in sorted(read_tensors(content).items()):
        if len(shape) != 2:
            vectors[name] = "F32", shape, numbers
            continue
        width = shape[1]
        rows = [quantize_row(numbers[i : i + width]) for i in range(0, len(numbers), width)]
        matrices[name] = "I8", shape, array("b", b"".join(whole.tobytes() for _, whole in rows))
        vectors[f"{name}.scale"] = "F32", shape[:1], array("f", [scale for scale, _ in rows])
    header, data = {}, b""
    for name, (kind, shape, numbers) in {**vectors, **matrices}.items():  # float32 first, so it is aligned
        raw = numbers.tobytes()
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def digest(content: bytes) -> str:
    """Name weights by their content, so that a page never takes those of another model."""
    return hashlib.sha256(content).hexdigest()[:12]


def scripts(content: bytes, parts: int = PARTS) -> dict[str, str]:
    """Write quantised weights as scripts: file name -> text. A page may load scripts from disk, but no data.

    Raises:
        ValueError: when the weights are larger than `MOST`.
    """
    if len(content) > MOST:
        raise ValueError(f"content ({len(content):,} bytes) must not exceed {MOST:,} bytes")
    size = -(-len(content) // (3 * parts)) * 3  # a multiple of 3 bytes ends without padding
    texts = {}
    for i in range(parts):
        text = base64.b64encode(content[i * size : (i + 1) * size]).decode()
        store = f'((globalThis.atWeights ??= {{}})["{digest(content)}"] ??= [])'
        texts[f"weights-{i + 1}.js"] = f'{store}[{i}] = "{text}";\n'
    return texts


def quantized(model: GPT) -> bytes:
    """Quantise the weights of a model: what `quantize` makes of its checkpoint."""
    from safetensors.torch import save

    from ..recipes import second_names

    twice = second_names(model)
    state = {name: weight for name, weight in model.state_dict().items() if name not in twice}
    return quantize(save({name: weight.float().cpu().contiguous() for name, weight in state.items()}))


def dequantized(model: GPT) -> GPT:
    """Return a copy of a model that has the quantised weights: what the page computes with."""
    from safetensors.torch import load

    weights = load(quantized(model))
    state = {
        name: tensor.float() * weights[f"{name}.scale"][:, None] if tensor.dim() == 2 else tensor
        for name, tensor in weights.items()
        if not name.endswith(".scale")
    }
    copied = copy.deepcopy(model)
    copied.load_state_dict(state, strict=False)  # a tied matrix comes once
    return copied
