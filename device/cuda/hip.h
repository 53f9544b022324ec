// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// HIP's side of driver.h: the same calls under the names of hip_runtime_api.h,
// which AMD made to take the same arguments. Types, flags and results that are used
// have CUDA's values there (hipHostRegisterPortable, hipStreamNonBlocking,
// hipEventBlockingSync, hipEventDisableTiming, hipIpcMemLazyEnablePeerAccess, and
// handles of 64 bytes); values of enums that differ, such as those of device
// attributes, are not used. The calls of contexts are marked as deprecated in HIP,
// which has one context a device, and are in all of its releases up to 6.2.

#ifndef WCACHE_CUDA_HIP_H
#define WCACHE_CUDA_HIP_H

#include "driver.h"

// wc_open_hip is wc_open for a libamdhip64. The calls of virtual memory management
// are not in it.
int wc_open_hip(wcDriver *d, const char *path, const char **missing, char *why, size_t size);

// wc_hip_name is HIP's name of a call of CUDA's, given without the version that its
// symbol may have; NULL if there is none.
const char *wc_hip_name(const char *call);

#endif
