// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// The part of the CUDA driver API that wcache uses, declared from its public
// documentation, so that a build needs no header of NVIDIA's. Types and names are
// those of cuda.h of CUDA 11.4, the first driver with all of these calls, and of
// every later one: the calls' versions are part of their names.

#ifndef WCACHE_CUDA_DRIVER_H
#define WCACHE_CUDA_DRIVER_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemHandle; // CUmemGenericAllocationHandle
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

enum {
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_BLOCKING_SYNC = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_MEMHOSTREGISTER_PORTABLE = 1,
	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
};

typedef struct {
	int type;
	int id;
} CUmemLocation;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "a 64-bit machine");
_Static_assert(sizeof(CUuuid) == 16, "CUuuid");
_Static_assert(sizeof(CUipcMemHandle) == 64, "CUipcMemHandle");
_Static_assert(sizeof(CUmemLocation) == 8, "CUmemLocation");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(offsetof(CUmemAllocationProp, win32HandleMetaData) == 16, "CUmemAllocationProp");
_Static_assert(offsetof(CUmemAllocationProp, allocFlags) == 24, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");

// A loaded driver: each call by its symbol's name.
typedef struct {
	CUresult (*cuInit)(unsigned flags);
	CUresult (*cuDriverGetVersion)(int *version);
	CUresult (*cuDeviceGetCount)(int *count);
	CUresult (*cuDeviceGet)(CUdevice *device, int ordinal);
	CUresult (*cuDeviceGetUuid)(CUuuid *uuid, CUdevice device);
	CUresult (*cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice device);
	CUresult (*cuDeviceGetPCIBusId)(char *id, int size, CUdevice device);
	CUresult (*cuDeviceGetAttribute)(int *value, int attribute, CUdevice device);
	CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *ctx, CUdevice device);
	CUresult (*cuDevicePrimaryCtxRelease_v2)(CUdevice device);
	CUresult (*cuCtxSetCurrent)(CUcontext ctx);
	CUresult (*cuCtxSynchronize)(void);
	CUresult (*cuMemGetInfo_v2)(size_t *free, size_t *total);
	CUresult (*cuMemGetAllocationGranularity)(size_t *bytes, const CUmemAllocationProp *prop, int option);
	CUresult (*cuMemCreate)(CUmemHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags);
	CUresult (*cuMemRelease)(CUmemHandle handle);
	CUresult (*cuMemAddressReserve)(CUdeviceptr *ptr, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags);
	CUresult (*cuMemAddressFree)(CUdeviceptr ptr, size_t bytes);
	CUresult (*cuMemMap)(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags);
	CUresult (*cuMemUnmap)(CUdeviceptr ptr, size_t bytes);
	CUresult (*cuMemSetAccess)(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count);
	CUresult (*cuMemExportToShareableHandle)(void *fd, CUmemHandle handle, int type, unsigned long long flags);
	CUresult (*cuMemImportFromShareableHandle)(CUmemHandle *handle, void *fd, int type);
	CUresult (*cuMemAlloc_v2)(CUdeviceptr *ptr, size_t bytes);
	CUresult (*cuMemFree_v2)(CUdeviceptr ptr);
	CUresult (*cuIpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr ptr);
	CUresult (*cuIpcOpenMemHandle_v2)(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags);
	CUresult (*cuIpcCloseMemHandle)(CUdeviceptr ptr);
	CUresult (*cuMemHostRegister_v2)(void *ptr, size_t bytes, unsigned flags);
	CUresult (*cuMemHostUnregister)(void *ptr);
	CUresult (*cuMemcpyHtoDAsync_v2)(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream);
	CUresult (*cuMemcpyDtoH_v2)(void *dst, CUdeviceptr src, size_t bytes);
	CUresult (*cuMemcpyDtoHAsync_v2)(void *dst, CUdeviceptr src, size_t bytes, CUstream stream);
	CUresult (*cuStreamCreate)(CUstream *stream, unsigned flags);
	CUresult (*cuStreamSynchronize)(CUstream stream);
	CUresult (*cuStreamDestroy_v2)(CUstream stream);
	CUresult (*cuEventCreate)(CUevent *event, unsigned flags);
	CUresult (*cuEventRecord)(CUevent event, CUstream stream);
	CUresult (*cuEventSynchronize)(CUevent event);
	CUresult (*cuEventDestroy_v2)(CUevent event);
} wcDriver;

// wc_open loads a driver for the life of the process. It returns 0, or -1 and
// writes why; *missing is then the call that the library lacks, if that is why.
int wc_open(wcDriver *d, const char *path, const char **missing, char *why, size_t size);

// The calls. Those that take a context make it this thread's first: a context is
// current to a thread, and Go moves a caller from one thread to another.
CUresult wc_init(wcDriver *d);
CUresult wc_version(wcDriver *d, int *version);
CUresult wc_device_count(wcDriver *d, int *count);
CUresult wc_device(wcDriver *d, CUdevice *device, int ordinal);
CUresult wc_uuid(wcDriver *d, CUuuid *uuid, CUdevice device);
CUresult wc_uuid_v2(wcDriver *d, CUuuid *uuid, CUdevice device);
CUresult wc_pci(wcDriver *d, char *id, int size, CUdevice device);
CUresult wc_attribute(wcDriver *d, int *value, int attribute, CUdevice device);
CUresult wc_retain(wcDriver *d, CUcontext *ctx, CUdevice device);
CUresult wc_release(wcDriver *d, CUdevice device);
CUresult wc_synchronize(wcDriver *d, CUcontext ctx);
CUresult wc_mem_info(wcDriver *d, CUcontext ctx, size_t *free, size_t *total);
CUresult wc_granularity(wcDriver *d, size_t *bytes, CUdevice device);
CUresult wc_mem_create(wcDriver *d, CUmemHandle *handle, size_t bytes, CUdevice device);
CUresult wc_mem_release(wcDriver *d, CUmemHandle handle);
CUresult wc_reserve(wcDriver *d, CUcontext ctx, CUdeviceptr *ptr, size_t bytes);
CUresult wc_unreserve(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes);
CUresult wc_map(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes, CUmemHandle handle);
CUresult wc_unmap(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes);
CUresult wc_set_access(wcDriver *d, CUcontext ctx, CUdeviceptr ptr, size_t bytes, CUdevice device, int flags);
CUresult wc_export(wcDriver *d, int *fd, CUmemHandle handle);
CUresult wc_import(wcDriver *d, CUcontext ctx, CUmemHandle *handle, int fd);
CUresult wc_mem_alloc(wcDriver *d, CUcontext ctx, CUdeviceptr *ptr, size_t bytes);
CUresult wc_mem_free(wcDriver *d, CUcontext ctx, CUdeviceptr ptr);
CUresult wc_ipc_get(wcDriver *d, CUcontext ctx, CUipcMemHandle *handle, CUdeviceptr ptr);
CUresult wc_ipc_open(wcDriver *d, CUcontext ctx, CUdeviceptr *ptr, const CUipcMemHandle *handle);
CUresult wc_ipc_close(wcDriver *d, CUcontext ctx, CUdeviceptr ptr);
CUresult wc_pin(wcDriver *d, CUcontext ctx, void *ptr, size_t bytes);
CUresult wc_unpin(wcDriver *d, CUcontext ctx, void *ptr);
CUresult wc_copy_in(wcDriver *d, CUcontext ctx, CUdeviceptr dst, const void *src, size_t bytes, CUstream stream);
CUresult wc_copy_out(wcDriver *d, CUcontext ctx, void *dst, CUdeviceptr src, size_t bytes);
CUresult wc_fetch(wcDriver *d, CUcontext ctx, void *dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult wc_stream_create(wcDriver *d, CUcontext ctx, CUstream *stream);
CUresult wc_stream_wait(wcDriver *d, CUcontext ctx, CUstream stream);
CUresult wc_stream_destroy(wcDriver *d, CUcontext ctx, CUstream stream);
CUresult wc_event_create(wcDriver *d, CUcontext ctx, CUevent *event);
CUresult wc_event_record(wcDriver *d, CUcontext ctx, CUevent event, CUstream stream);
CUresult wc_event_wait(wcDriver *d, CUcontext ctx, CUevent event);
CUresult wc_event_destroy(wcDriver *d, CUcontext ctx, CUevent event);

#endif
