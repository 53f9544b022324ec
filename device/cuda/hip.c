// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

#include "hip.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define CALL(cu, hip) {offsetof(wcDriver, cu), #cu, #hip}

static const struct {
	size_t slot;
	const char *cu, *hip;
} calls[] = {
	CALL(cuInit, hipInit),
	CALL(cuDeviceGetCount, hipGetDeviceCount),
	CALL(cuDeviceGet, hipDeviceGet),
	CALL(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId),
	CALL(cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain),
	CALL(cuDevicePrimaryCtxRelease_v2, hipDevicePrimaryCtxRelease),
	CALL(cuCtxSetCurrent, hipCtxSetCurrent),
	CALL(cuCtxSynchronize, hipDeviceSynchronize),
	CALL(cuMemGetInfo_v2, hipMemGetInfo),
	CALL(cuMemAlloc_v2, hipMalloc),
	CALL(cuMemFree_v2, hipFree),
	CALL(cuIpcGetMemHandle, hipIpcGetMemHandle),
	CALL(cuIpcOpenMemHandle_v2, hipIpcOpenMemHandle),
	CALL(cuIpcCloseMemHandle, hipIpcCloseMemHandle),
	CALL(cuMemHostRegister_v2, hipHostRegister),
	CALL(cuMemHostUnregister, hipHostUnregister),
	CALL(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync),
	CALL(cuMemcpyDtoH_v2, hipMemcpyDtoH),
	CALL(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync),
	CALL(cuStreamCreate, hipStreamCreateWithFlags),
	CALL(cuStreamSynchronize, hipStreamSynchronize),
	CALL(cuStreamDestroy_v2, hipStreamDestroy),
	CALL(cuEventCreate, hipEventCreateWithFlags),
	CALL(cuEventRecord, hipEventRecord),
	CALL(cuEventSynchronize, hipEventSynchronize),
	CALL(cuEventDestroy_v2, hipEventDestroy),
};

enum { CALLS = sizeof calls / sizeof *calls };

int wc_open_hip(wcDriver *d, const char *path, const char **missing, char *why, size_t size) {
	*missing = NULL;
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); // as in wc_open
	if (!lib) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
	for (int i = 0; i < CALLS; i++) {
		void *call = dlsym(lib, calls[i].hip);
		if (!call) {
			*missing = calls[i].hip;
			snprintf(why, size, "it has no %s", calls[i].hip);
			return -1;
		}
		memcpy((char *)d + calls[i].slot, &call, sizeof call);
	}
	return 0;
}

const char *wc_hip_name(const char *call) {
	size_t n = strlen(call);
	for (int i = 0; i < CALLS; i++)
		if (!strncmp(calls[i].cu, call, n) && (!calls[i].cu[n] || !strcmp(calls[i].cu + n, "_v2"))) return calls[i].hip;
	return NULL;
}
