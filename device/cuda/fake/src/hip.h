// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// What comes before libcuda.c to make a libamdhip64 of it: HIP's names of the
// calls that wcache makes. Their arguments and results are those of CUDA's. The
// calls of virtual memory management keep CUDA's names, as nobody asks for them.

#define cuInit hipInit
#define cuDeviceGetCount hipGetDeviceCount
#define cuDeviceGet hipDeviceGet
#define cuDeviceGetPCIBusId hipDeviceGetPCIBusId
#define cuDevicePrimaryCtxRetain hipDevicePrimaryCtxRetain
#define cuDevicePrimaryCtxRelease_v2 hipDevicePrimaryCtxRelease
#define cuCtxSetCurrent hipCtxSetCurrent
#define cuCtxSynchronize hipDeviceSynchronize
#define cuMemGetInfo_v2 hipMemGetInfo
#define cuMemAlloc_v2 hipMalloc
#define cuMemFree_v2 hipFree
#define cuIpcGetMemHandle hipIpcGetMemHandle
#define cuIpcOpenMemHandle_v2 hipIpcOpenMemHandle
#define cuIpcCloseMemHandle hipIpcCloseMemHandle
#define cuMemHostRegister_v2 hipHostRegister
#define cuMemHostUnregister hipHostUnregister
#define cuMemcpyHtoDAsync_v2 hipMemcpyHtoDAsync
#define cuMemcpyDtoH_v2 hipMemcpyDtoH
#define cuMemcpyDtoHAsync_v2 hipMemcpyDtoHAsync
#define cuStreamCreate hipStreamCreateWithFlags
#define cuStreamSynchronize hipStreamSynchronize
#define cuStreamDestroy_v2 hipStreamDestroy
#define cuEventCreate hipEventCreateWithFlags
#define cuEventRecord hipEventRecord
#define cuEventSynchronize hipEventSynchronize
#define cuEventDestroy_v2 hipEventDestroy
