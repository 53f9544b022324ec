# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
"""Writes casts.json: for each cast, the sha256 of what torch makes of the values of cast_test.go.

    python casts.py > casts.json      # on x86-64 with AVX2, any torch since 2.0

The values are all of float16 and bfloat16, and for float32 and float64 all upper 16 bits, each with
lower bits around the places where rounding turns.
"""
import hashlib
import json

import numpy
import torch

upper = numpy.arange(1 << 16, dtype=numpy.uint64)[:, None]
low32 = numpy.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=numpy.uint64)
mid = numpy.array([0, 0x1000, 0x7FFF, 0x8000, 0x3FFFF], dtype=numpy.uint64)  # of float64, what float32 keeps
low = numpy.array([0, 1, 0x10000000, 0x1FFFFFFF], dtype=numpy.uint64)  # and what it rounds away
low64 = (mid[:, None] << numpy.uint64(29) | low).reshape(-1)

values = {
    "F16": torch.from_numpy(upper.astype(numpy.uint16).reshape(-1).view(numpy.int16)).view(torch.float16),
    "BF16": torch.from_numpy(upper.astype(numpy.uint16).reshape(-1).view(numpy.int16)).view(torch.bfloat16),
    "F32": torch.from_numpy((upper << numpy.uint64(16) | low32).astype(numpy.uint32).reshape(-1).view(numpy.float32)),
    "F64": torch.from_numpy((upper << numpy.uint64(48) | low64).reshape(-1).view(numpy.float64)),
}
types = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
out = {}
for source, x in values.items():
    for target, dtype in types.items():
        if source != target:
            y = torch.empty(x.shape, dtype=dtype).copy_(x)
            out[f"{source} to {target}"] = hashlib.sha256(y.view(torch.uint8).numpy().tobytes()).hexdigest()
print(json.dumps(out, indent=2))
