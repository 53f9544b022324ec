// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

// #include <stdlib.h>
// #include "hip.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// hipLibraries are the names under which ROCm installs HIP: first the name in development
// packages, then one for each version of the library's interface.
var hipLibraries = []string{"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}

// OpenHIP opens an AMD GPU by its address on the PCI bus, such as 0000:c1:00.0, since ROCm's
// tools show different uuids. Its memory is always kept by a Keeper.
//
// OpenHIP has not been tested on AMD hardware, only against a library that behaves as HIP is
// documented.
func OpenHIP(pci string, o Options) (*Keeper, error) {
	return keeper(choose(pci, o, loadHIP, findPCI))
}

// Advice for a NoDriver.
const (
	hipInstall = "install ROCm's HIP runtime, or start the container with its GPUs (--device /dev/kfd --device /dev/dri)"
	hipUpdate  = "update ROCm to 5.2 or later"
	hipLook    = "does rocminfo list the GPU? This user has to be allowed to open /dev/kfd and /dev/dri/renderD* (groups render and video)"
)

// loadHIP loads and initializes a libamdhip64: the named one, or the first that exists.
func loadHIP(library string) (*driver, error) {
	names := hipLibraries
	if library != "" {
		names = []string{library}
	}
	var none error
	for _, name := range names {
		d, missing, err := openHIP(name)
		switch {
		case missing:
			return nil, &NoDriver{Library: name, Err: err, Do: hipUpdate}
		case err != nil && none == nil:
			none = &NoDriver{Library: name, Err: err, Do: hipInstall}
		case err == nil:
			if err := d.failed("cuInit", C.wc_init(&d.c)); err != nil {
				return nil, &NoDriver{Library: name, Err: err, Do: hipLook}
			}
			return d, nil
		}
	}
	return nil, none
}

// openHIP loads a library; missing tells that the library exists and lacks a call.
func openHIP(library string) (d *driver, missing bool, err error) {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	d = &driver{hip: true}
	var lacks *C.char
	var why [512]C.char
	if C.wc_open_hip(&d.c, name, &lacks, &why[0], C.size_t(len(why))) != 0 {
		return nil, lacks != nil, errors.New(C.GoString(&why[0]))
	}
	return d, false, nil
}

// findPCI finds the GPU of an address. The parts of a partitioned GPU share their address.
func findPCI(list []gpu, pci string) (gpu, error) {
	var found []gpu
	for _, g := range list {
		if strings.EqualFold(g.uuid, pci) {
			found = append(found, g)
		}
	}
	if len(found) != 1 {
		return gpu{}, &NotFound{Name: pci, Have: uuids(list)}
	}
	return found[0], nil
}

// hipName is HIP's name of a call.
func hipName(call string) string {
	name := C.CString(call)
	defer C.free(unsafe.Pointer(name))
	if hip := C.wc_hip_name(name); hip != nil {
		return C.GoString(hip)
	}
	return call
}

// hipResult is HIP's name of a result.
func hipResult(r Result) string {
	if name, ok := hipResults[r]; ok {
		return name
	}
	return fmt.Sprintf("HIP error %d", int32(r))
}

// hipResults is hipError_t of ROCm 6.2's hip_runtime_api.h. The results that wcache acts on
// have the same numbers as in CUDA.
var hipResults = map[Result]string{
	1:   "hipErrorInvalidValue",
	2:   "hipErrorOutOfMemory",
	3:   "hipErrorNotInitialized",
	4:   "hipErrorDeinitialized",
	5:   "hipErrorProfilerDisabled",
	6:   "hipErrorProfilerNotInitialized",
	7:   "hipErrorProfilerAlreadyStarted",
	8:   "hipErrorProfilerAlreadyStopped",
	9:   "hipErrorInvalidConfiguration",
	12:  "hipErrorInvalidPitchValue",
	13:  "hipErrorInvalidSymbol",
	17:  "hipErrorInvalidDevicePointer",
	21:  "hipErrorInvalidMemcpyDirection",
	35:  "hipErrorInsufficientDriver",
	52:  "hipErrorMissingConfiguration",
	53:  "hipErrorPriorLaunchFailure",
	98:  "hipErrorInvalidDeviceFunction",
	100: "hipErrorNoDevice",
	101: "hipErrorInvalidDevice",
	200: "hipErrorInvalidImage",
	201: "hipErrorInvalidContext",
	202: "hipErrorContextAlreadyCurrent",
	205: "hipErrorMapFailed",
	206: "hipErrorUnmapFailed",
	207: "hipErrorArrayIsMapped",
	208: "hipErrorAlreadyMapped",
	209: "hipErrorNoBinaryForGpu",
	210: "hipErrorAlreadyAcquired",
	211: "hipErrorNotMapped",
	212: "hipErrorNotMappedAsArray",
	213: "hipErrorNotMappedAsPointer",
	214: "hipErrorECCNotCorrectable",
	215: "hipErrorUnsupportedLimit",
	216: "hipErrorContextAlreadyInUse",
	217: "hipErrorPeerAccessUnsupported",
	218: "hipErrorInvalidKernelFile",
	219: "hipErrorInvalidGraphicsContext",
	300: "hipErrorInvalidSource",
	301: "hipErrorFileNotFound",
	302: "hipErrorSharedObjectSymbolNotFound",
	303: "hipErrorSharedObjectInitFailed",
	304: "hipErrorOperatingSystem",
	400: "hipErrorInvalidHandle",
	401: "hipErrorIllegalState",
	500: "hipErrorNotFound",
	600: "hipErrorNotReady",
	700: "hipErrorIllegalAddress",
	701: "hipErrorLaunchOutOfResources",
	702: "hipErrorLaunchTimeOut",
	704: "hipErrorPeerAccessAlreadyEnabled",
	705: "hipErrorPeerAccessNotEnabled",
	708: "hipErrorSetOnActiveProcess",
	709: "hipErrorContextIsDestroyed",
	710: "hipErrorAssert",
	712: "hipErrorHostMemoryAlreadyRegistered",
	713: "hipErrorHostMemoryNotRegistered",
	719: "hipErrorLaunchFailure",
	720: "hipErrorCooperativeLaunchTooLarge",
	801: "hipErrorNotSupported",
	900: "hipErrorStreamCaptureUnsupported",
	901: "hipErrorStreamCaptureInvalidated",
	902: "hipErrorStreamCaptureMerge",
	903: "hipErrorStreamCaptureUnmatched",
	904: "hipErrorStreamCaptureUnjoined",
	905: "hipErrorStreamCaptureIsolation",
	906: "hipErrorStreamCaptureImplicit",
	907: "hipErrorCapturedEvent",
	908: "hipErrorStreamCaptureWrongThread",
	910: "hipErrorGraphExecUpdateFailure",
	911: "hipErrorInvalidChannelDescriptor",
	912: "hipErrorInvalidTexture",
	999: "hipErrorUnknown",
}
