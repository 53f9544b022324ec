# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
"""Unpickle a framed reply from standard input as an engine does, with torch, and
print its entries as JSON. The class that it names stands in for vLLM's."""

import dataclasses
import json
import pickle
import sys
import types

import torch


@dataclasses.dataclass
class TensorEntry:
    kind: str
    ipc_args: tuple | None = None
    cpu_tensor: torch.Tensor | None = None


sys.modules["reply"] = types.ModuleType("reply")
sys.modules["reply"].TensorEntry = TensorEntry

frame = sys.stdin.buffer.read()
assert int.from_bytes(frame[:8], "big") == len(frame) - 8
reply = pickle.loads(frame[8:])

storages = []
entries = []
for name, entry in reply["entries"].items():
    tensor = entry.cpu_tensor
    storage = tensor.untyped_storage()._cdata
    if storage not in storages:
        storages.append(storage)
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    entries.append(
        {
            "Name": name,
            "Kind": entry.kind,
            "IPC": entry.ipc_args is not None,
            "DType": str(tensor.dtype),
            "Shape": list(tensor.shape),
            "Stride": list(tensor.stride()),
            "Data": bytes(raw.tolist()).hex(),
            "Shares": storages.index(storage),
            "Grad": tensor.requires_grad,
        }
    )
del reply["entries"]
json.dump({"Entries": entries, "Rest": reply}, sys.stdout)
