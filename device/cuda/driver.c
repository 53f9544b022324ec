// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define LOAD(name)                                   \
	if (!(*(void **)&d->name = dlsym(lib, #name))) { \
		*missing = #name;                            \
		goto fail;                                   \
	}

int wc_open(wcDriver *d, const char *path, const char **missing, char *why, size_t size) {
	*missing = NULL;
	// A driver starts threads and registers what runs at exit: it is never unloaded.
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
	LOAD(cuInit)
	LOAD(cuDriverGetVersion)
	LOAD(cuDeviceGetCount)
	LOAD(cuDeviceGet)
	LOAD(cuDeviceGetUuid)
	LOAD(cuDeviceGetUuid_v2)
	LOAD(cuDeviceGetPCIBusId)
	LOAD(cuDeviceGetAttribute)
	LOAD(cuDevicePrimaryCtxRetain)
	LOAD(cuDevicePrimaryCtxRelease_v2)
	LOAD(cuCtxSetCurrent)
	LOAD(cuCtxSynchronize)
	LOAD(cuMemGetInfo_v2)
	LOAD(cuMemGetAllocationGranularity)
	LOAD(cuMemCreate)
	LOAD(cuMemRelease)
	LOAD(cuMemAddressReserve)
	LOAD(cuMemAddressFree)
	LOAD(cuMemMap)
	LOAD(cuMemUnmap)
	LOAD(cuMemSetAccess)
	LOAD(cuMemExportToShareableHandle)
	LOAD(cuMemImportFromShareableHandle)
	LOAD(cuMemAlloc_v2)
	LOAD(cuMemFree_v2)
	LOAD(cuIpcGetMemHandle)
	LOAD(cuIpcOpenMemHandle_v2)
	LOAD(cuIpcCloseMemHandle)
	LOAD(cuMemHostRegister_v2)
	LOAD(cuMemHostUnregister)
	LOAD(cuMemcpyHtoDAsync_v2)
	LOAD(cuMemcpyDtoH_v2)
	LOAD(cuMemcpyDtoHAsync_v2)
	LOAD(cuStreamCreate)
	LOAD(cuStreamSynchronize)
	LOAD(cuStreamDestroy_v2)
	LOAD(cuEventCreate)
	LOAD(cuEventRecord)
	LOAD(cuEventSynchronize)
	LOAD(cuEventDestroy_v2)
	return 0;
fail:
	snprintf(why, size, "it has no %s", *missing);
	return -1;
}

static CUmemAllocationProp prop(CUdevice device) {
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
}

CUresult wc_init(wcDriver *d) { return d->cuInit(0); }
CUresult wc_version(wcDriver *d, int *version) { return d->cuDriverGetVersion(version); }
CUresult wc_device_count(wcDriver *d, int *count) { return d->cuDeviceGetCount(count); }
CUresult wc_device(wcDriver *d, CUdevice *device, int ordinal) { return d->cuDeviceGet(device, ordinal); }
CUresult wc_uuid(wcDriver *d, CUuuid *uuid, CUdevice device) { return d->cuDeviceGetUuid(uuid, device); }
CUresult wc_uuid_v2(wcDriver *d, CUuuid *uuid, CUdevice device) { return d->cuDeviceGetUuid_v2(uuid, device); }
CUresult wc_pci(wcDriver *d, char *id, int size, CUdevice device) { return d->cuDeviceGetPCIBusId(id, size, device); }
CUresult wc_attribute(wcDriver *d, int *value, int attribute, CUdevice device) {
	return d->cuDeviceGetAttribute(value, attribute, device);
}
CUresult wc_retain(wcDriver *d, CUcontext *ctx, CUdevice device) { return d->cuDevicePrimaryCtxRetain(ctx, device); }
CUresult wc_release(wcDriver *d, CUdevice device) { return d->cuDevicePrimaryCtxRelease_v2(device); }

CUresult wc_granularity(wcDriver *d, size_t *bytes, CUdevice device) {
	CUmemAllocationProp p = prop(device);
	return d->cuMemGetAllocationGranularity(bytes, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

CUresult wc_mem_create(wcDriver *d, CUmemHandle *handle, size_t bytes, CUdevice device) {
	CUmemAllocationProp p = prop(device);
	return d->cuMemCreate(handle, bytes, &p, 0);
}

CUresult wc_mem_release(wcDriver *d, CUmemHandle handle) { return d->cuMemRelease(handle); }

CUresult wc_export(wcDriver *d, int *fd, CUmemHandle handle) {
	return d->cuMemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

// WITH makes ctx current for the call that follows it.
#define WITH(ctx)                            \
	CUresult current = d->cuCtxSetCurrent(ctx); \
	if (current) return current;

CUresult wc_synchronize(wcDriver *d, CUcontext ctx) { WITH(ctx) return d->cuCtxSynchronize(); }
CUresult wc_mem_info(wcDriver *d, CUcontext ctx, size_t *free, size_t *total) {
	WITH(ctx) return d->cuMemGetInfo_v2(free, total);
}
CUresult wc_reserve(wcDriver *d, CUcontext ctx, CUdeviceptr *ptr, size_t bytes) {
	WITH(ctx) return d->cuMemAddressReserve(ptr, bytes, 0, 0, 0);
}
CUresult wc_unreserve(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes) {
	WITH(ctx) return d->cuMemAddressFree(ptr, bytes);
}
CUresult wc_map(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes, CUmemHandle handle) {
	WITH(ctx) return d->cuMemMap(ptr, bytes, 0, handle, 0);
}
CUresult wc_unmap(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes) {
	WITH(ctx) return d->cuMemUnmap(ptr, bytes);
}
CUresult wc_set_access(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes, CUdevice device, int flags) {
	CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};
	WITH(ctx) return d->cuMemSetAccess(ptr, bytes, &desc, 1);
}
CUresult wc_import(wcDriver *d, CUcontext ctx, CUmemHandle *handle, int fd) {
	// The descriptor itself goes in place of a pointer.
	WITH(ctx) return d->cuMemImportFromShareableHandle(handle, (void *)(ptrdiff_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}
CUresult wc_mem_alloc(wcDriver *d, CUcontext ctx, CUdeviceptr *ptr, size_t bytes) {
	WITH(ctx) return d->cuMemAlloc_v2(ptr, bytes);
}
CUresult wc_mem_free(wcDriver *d, CUcontext ctx, CUdeviceptr ptr) { WITH(ctx) return d->cuMemFree_v2(ptr); }
CUresult wc_ipc_get(wcDriver *d, CUcontext ctx, CUipcMemHandle *handle, CUdeviceptr ptr) {
	WITH(ctx) return d->cuIpcGetMemHandle(handle, ptr);
}
CUresult wc_ipc_open(wcDriver *d, CUcontext ctx, CUdeviceptr *ptr, const CUipcMemHandle *handle) {
	WITH(ctx) return d->cuIpcOpenMemHandle_v2(ptr, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}
CUresult wc_ipc_close(wcDriver *d, CUcontext ctx, CUdeviceptr ptr) { WITH(ctx) return d->cuIpcCloseMemHandle(ptr); }
CUresult wc_pin(wcDriver *d, CUcontext ctx, void *ptr, size_t bytes) {
	WITH(ctx) return d->cuMemHostRegister_v2(ptr, bytes, CU_MEMHOSTREGISTER_PORTABLE);
}
CUresult wc_unpin(wcDriver *d, CUcontext ctx, void *ptr) { WITH(ctx) return d->cuMemHostUnregister(ptr); }
CUresult wc_copy_in(wcDriver *d, CUcontext ctx, CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
	WITH(ctx) return d->cuMemcpyHtoDAsync_v2(dst, src, bytes, stream);
}
CUresult wc_copy_out(wcDriver *d, CUcontext ctx, void *dst, CUdeviceptr src, size_t bytes) {
	WITH(ctx) return d->cuMemcpyDtoH_v2(dst, src, bytes);
}
CUresult wc_fetch(wcDriver *d, CUcontext ctx, void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
	WITH(ctx) return d->cuMemcpyDtoHAsync_v2(dst, src, bytes, stream);
}
CUresult wc_stream_create(wcDriver *d, CUcontext ctx, CUstream *stream) {
	WITH(ctx) return d->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
}
CUresult wc_stream_wait(wcDriver *d, CUcontext ctx, CUstream stream) { WITH(ctx) return d->cuStreamSynchronize(stream); }
CUresult wc_stream_destroy(wcDriver *d, CUcontext ctx, CUstream stream) { WITH(ctx) return d->cuStreamDestroy_v2(stream); }
CUresult wc_event_create(wcDriver *d, CUcontext ctx, CUevent *event) {
	// A thread that waits sleeps: the others need the processor to read files.
	WITH(ctx) return d->cuEventCreate(event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
}
CUresult wc_event_record(wcDriver *d, CUcontext ctx, CUevent event, CUstream stream) {
	WITH(ctx) return d->cuEventRecord(event, stream);
}
CUresult wc_event_wait(wcDriver *d, CUcontext ctx, CUevent event) { WITH(ctx) return d->cuEventSynchronize(event); }
CUresult wc_event_destroy(wcDriver *d, CUcontext ctx, CUevent event) { WITH(ctx) return d->cuEventDestroy_v2(event); }
