// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

// #cgo CFLAGS: -std=c11 -Wall -Wextra -Werror
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
)

type (
	cuContext = C.CUcontext
	cuPointer = C.CUdeviceptr // an address in the GPU's memory
	cuHandle  = C.CUmemHandle
	cuStream  = C.CUstream
	cuEvent   = C.CUevent
)

// minVersion is CUDA 11.4, the first version with all calls.
const minVersion = 11040

// driver is a loaded libcuda, or a libamdhip64. Its methods are safe for concurrent
// use.
type driver struct {
	c   C.wcDriver
	hip bool
}

// load loads and initializes a driver.
func load(library string) (*driver, error) {
	if library == "" {
		library = defaultLibrary
	}
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	d := new(driver)
	var missing *C.char
	var why [512]C.char
	if C.wc_open(&d.c, name, &missing, &why[0], C.size_t(len(why))) != 0 {
		do := doInstall
		if missing != nil {
			do = doUpdate
		}
		return nil, &NoDriver{Library: library, Err: errors.New(C.GoString(&why[0])), Do: do}
	}
	var version C.int
	if err := d.failed("cuDriverGetVersion", C.wc_version(&d.c, &version)); err != nil {
		return nil, &NoDriver{Library: library, Err: err, Do: doUpdate}
	}
	if version < minVersion {
		err := fmt.Errorf("it is for CUDA %d.%d", version/1000, version%1000/10)
		return nil, &NoDriver{Library: library, Err: err, Do: doUpdate}
	}
	if r := C.wc_init(&d.c); r != 0 {
		return nil, &NoDriver{Library: library, Err: d.failed("cuInit", r), Do: whatToDo(Result(r), exists)}
	}
	return d, nil
}

func exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

// failed is the error of a call, by CUDA's name for it; nil if it succeeded.
func (d *driver) failed(call string, r C.CUresult) error {
	switch {
	case r == 0:
		return nil
	case d.hip:
		return &Error{Call: hipName(call), Result: Result(r), HIP: true}
	}
	return &Error{Call: call, Result: Result(r)}
}

// gpus lists the devices that the driver shows, in its own order.
func (d *driver) gpus() ([]gpu, error) {
	var n C.int
	if err := d.failed("cuDeviceGetCount", C.wc_device_count(&d.c, &n)); err != nil {
		return nil, err
	}
	list := make([]gpu, n)
	for i := range list {
		g, err := d.gpu(C.int(i))
		if err != nil {
			return nil, err
		}
		list[i] = g
	}
	return list, nil
}

func (d *driver) gpu(ordinal C.int) (gpu, error) {
	var device C.CUdevice
	if err := d.failed("cuDeviceGet", C.wc_device(&d.c, &device, ordinal)); err != nil {
		return gpu{}, err
	}
	g := gpu{device: int(device)}
	var id [32]C.char
	if err := d.failed("cuDeviceGetPCIBusId", C.wc_pci(&d.c, &id[0], C.int(len(id)), device)); err != nil {
		return gpu{}, err
	}
	g.pci = parsePCI(C.GoString(&id[0]))
	if d.hip {
		g.uuid = strings.ToLower(C.GoString(&id[0]))
		return g, nil
	}
	var own, parent C.CUuuid
	if err := d.failed("cuDeviceGetUuid_v2", C.wc_uuid_v2(&d.c, &own, device)); err != nil {
		return gpu{}, err
	}
	if err := d.failed("cuDeviceGetUuid", C.wc_uuid(&d.c, &parent, device)); err != nil {
		return gpu{}, err
	}
	// For a MIG slice, the older call gives the uuid of the whole GPU.
	g.uuid = formatUUID(*(*[16]byte)(unsafe.Pointer(&own)), own != parent)
	return g, nil
}

// exports reports whether a device's memory can be exported as a descriptor.
func (d *driver) exports(device int) (bool, error) {
	for _, attribute := range []C.int{
		C.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, C.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
	} {
		if v, err := d.attribute(C.CUdevice(device), attribute); v == 0 || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (d *driver) attribute(device C.CUdevice, attribute C.int) (int, error) {
	var v C.int
	err := d.failed("cuDeviceGetAttribute", C.wc_attribute(&d.c, &v, attribute, device))
	return int(v), err
}

// retain makes a device's primary cuContext, or counts one more user of it.
func (d *driver) retain(device int) (cuContext, error) {
	var ctx cuContext
	err := d.failed("cuDevicePrimaryCtxRetain", C.wc_retain(&d.c, &ctx, C.CUdevice(device)))
	return ctx, err
}

func (d *driver) release(device int) error {
	return d.failed("cuDevicePrimaryCtxRelease", C.wc_release(&d.c, C.CUdevice(device)))
}

func (d *driver) synchronize(ctx cuContext) error {
	return d.failed("cuCtxSynchronize", C.wc_synchronize(&d.c, ctx))
}

func (d *driver) free(ctx cuContext) (int64, error) {
	var free, total C.size_t
	err := d.failed("cuMemGetInfo", C.wc_mem_info(&d.c, ctx, &free, &total))
	return int64(free), err
}

func (d *driver) granularity(device int) (int64, error) {
	var n C.size_t
	err := d.failed("cuMemGetAllocationGranularity", C.wc_granularity(&d.c, &n, C.CUdevice(device)))
	return int64(n), err
}

func (d *driver) memCreate(device int, bytes int64) (cuHandle, error) {
	var h cuHandle
	err := d.failed("cuMemCreate", C.wc_mem_create(&d.c, &h, C.size_t(bytes), C.CUdevice(device)))
	return h, err
}

func (d *driver) memRelease(h cuHandle) error {
	return d.failed("cuMemRelease", C.wc_mem_release(&d.c, h))
}

func (d *driver) reserve(ctx cuContext, bytes int64) (cuPointer, error) {
	var p cuPointer
	err := d.failed("cuMemAddressReserve", C.wc_reserve(&d.c, ctx, &p, C.size_t(bytes)))
	return p, err
}

func (d *driver) unreserve(ctx cuContext, p cuPointer, bytes int64) error {
	return d.failed("cuMemAddressFree", C.wc_unreserve(&d.c, ctx, p, C.size_t(bytes)))
}

func (d *driver) mapMemory(ctx cuContext, p cuPointer, bytes int64, h cuHandle) error {
	return d.failed("cuMemMap", C.wc_map(&d.c, ctx, p, C.size_t(bytes), h))
}

func (d *driver) unmap(ctx cuContext, p cuPointer, bytes int64) error {
	return d.failed("cuMemUnmap", C.wc_unmap(&d.c, ctx, p, C.size_t(bytes)))
}

func (d *driver) allow(ctx cuContext, p cuPointer, bytes int64, device int) error {
	return d.failed("cuMemSetAccess", C.wc_set_access(&d.c, ctx, p, C.size_t(bytes), C.CUdevice(device), C.CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
}

// export exports memory as a descriptor. The caller owns it.
func (d *driver) export(h cuHandle) (*fd.FD, error) {
	n := C.int(-1)
	if err := d.failed("cuMemExportToShareableHandle", C.wc_export(&d.c, &n, h)); err != nil {
		return nil, err
	}
	unix.CloseOnExec(int(n)) // drivers don't promise to set it
	return fd.New(int(n))
}

// importMemory makes a handle from a descriptor, which stays the caller's.
func (d *driver) importMemory(ctx cuContext, f *fd.FD) (cuHandle, error) {
	var h cuHandle
	err := d.failed("cuMemImportFromShareableHandle", C.wc_import(&d.c, ctx, &h, C.int(f.Int())))
	return h, err
}

// memAlloc allocates memory that lives until memFree, or until this process ends.
func (d *driver) memAlloc(ctx cuContext, bytes int64) (cuPointer, error) {
	var p cuPointer
	err := d.failed("cuMemAlloc", C.wc_mem_alloc(&d.c, ctx, &p, C.size_t(bytes)))
	return p, err
}

func (d *driver) memFree(ctx cuContext, p cuPointer) error {
	return d.failed("cuMemFree", C.wc_mem_free(&d.c, ctx, p))
}

// ipcHandle gives the handle by which other processes open the memory of memAlloc.
func (d *driver) ipcHandle(ctx cuContext, p cuPointer) (handle [device.HandleBytes]byte, err error) {
	err = d.failed("cuIpcGetMemHandle", C.wc_ipc_get(&d.c, ctx, (*C.CUipcMemHandle)(unsafe.Pointer(&handle)), p))
	return handle, err
}

// ipcOpen maps the memory of another process. A process can't open its own handles.
func (d *driver) ipcOpen(ctx cuContext, handle [device.HandleBytes]byte) (cuPointer, error) {
	var p cuPointer
	err := d.failed("cuIpcOpenMemHandle", C.wc_ipc_open(&d.c, ctx, &p, (*C.CUipcMemHandle)(unsafe.Pointer(&handle))))
	return p, err
}

func (d *driver) ipcClose(ctx cuContext, p cuPointer) error {
	return d.failed("cuIpcCloseMemHandle", C.wc_ipc_close(&d.c, ctx, p))
}

// pin locks memory outside of Go's heap, so that the GPU can read and write it.
func (d *driver) pin(ctx cuContext, mem []byte) error {
	return d.failed("cuMemHostRegister", C.wc_pin(&d.c, ctx, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem))))
}

func (d *driver) unpin(ctx cuContext, mem []byte) error {
	return d.failed("cuMemHostUnregister", C.wc_unpin(&d.c, ctx, unsafe.Pointer(unsafe.SliceData(mem))))
}

// copyIn starts a copy from pinned memory, which must stay until the copy ends.
func (d *driver) copyIn(ctx cuContext, dst cuPointer, src []byte, s cuStream) error {
	return d.failed("cuMemcpyHtoDAsync", C.wc_copy_in(&d.c, ctx, dst, unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)), s))
}

func (d *driver) copyOut(ctx cuContext, dst []byte, src cuPointer) error {
	return d.failed("cuMemcpyDtoH", C.wc_copy_out(&d.c, ctx, unsafe.Pointer(unsafe.SliceData(dst)), src, C.size_t(len(dst))))
}

// fetch starts a copy into pinned memory, which must stay until the copy ends.
func (d *driver) fetch(ctx cuContext, dst []byte, src cuPointer, s cuStream) error {
	return d.failed("cuMemcpyDtoHAsync", C.wc_fetch(&d.c, ctx, unsafe.Pointer(unsafe.SliceData(dst)), src, C.size_t(len(dst)), s))
}

func (d *driver) newStream(ctx cuContext) (cuStream, error) {
	var s cuStream
	err := d.failed("cuStreamCreate", C.wc_stream_create(&d.c, ctx, &s))
	return s, err
}

func (d *driver) waitStream(ctx cuContext, s cuStream) error {
	return d.failed("cuStreamSynchronize", C.wc_stream_wait(&d.c, ctx, s))
}

func (d *driver) endStream(ctx cuContext, s cuStream) error {
	return d.failed("cuStreamDestroy", C.wc_stream_destroy(&d.c, ctx, s))
}

func (d *driver) newEvent(ctx cuContext) (cuEvent, error) {
	var e cuEvent
	err := d.failed("cuEventCreate", C.wc_event_create(&d.c, ctx, &e))
	return e, err
}

func (d *driver) record(ctx cuContext, e cuEvent, s cuStream) error {
	return d.failed("cuEventRecord", C.wc_event_record(&d.c, ctx, e, s))
}

func (d *driver) waitEvent(ctx cuContext, e cuEvent) error {
	return d.failed("cuEventSynchronize", C.wc_event_wait(&d.c, ctx, e))
}

func (d *driver) endEvent(ctx cuContext, e cuEvent) error {
	return d.failed("cuEventDestroy", C.wc_event_destroy(&d.c, ctx, e))
}
