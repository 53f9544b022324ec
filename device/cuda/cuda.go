// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package cuda is the device for NVIDIA's GPUs. It uses the virtual memory management of the
// CUDA driver API: a segment is memory of cuMemCreate, exported as a file descriptor. It lives
// as long as any process has the descriptor, whether that process uses CUDA or not.
//
// If memory can't be exported, or engines can't take a descriptor, a [Keeper] keeps the
// memory; on an AMD GPU always, by HIP.
//
// Only a loader child uses this package. It loads the driver when a device is opened and links
// nothing, so that the program starts, and its tests run, on machines without a driver; there
// [Open] fails with a [NoDriver].
//
// The first use of a GPU takes 0.1 to 0.3 s, and a context takes some hundred MiB of its
// memory until the process ends.
package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/wcache/wcache/device"
)

// Options tune a device. Only tests and measurements need more than the zero value.
type Options struct {
	Library    string // the driver, a name for dlopen(3); empty: libcuda.so.1, or ROCm's library
	BlockBytes int    // size of a piece of staging, at least device.MinBlock; 0: 4 MiB
	Ring       int    // pieces of staging per writer, at least 2; 0: 2
}

// Default options: a writer reads a file into one piece while the GPU copies the other, and
// pieces are large enough for copies at the speed of the bus. Eight such writers reach 50 of a
// PCIe 5.0 link's 55 GB/s.
const (
	defaultLibrary = "libcuda.so.1"
	defaultBlock   = 4 << 20
	defaultRing    = 2
)

// contextBytes is roughly the GPU memory of a context. The driver doesn't say how much memory
// it lacked.
const contextBytes = 512 << 20

const visibleDevices = "CUDA_VISIBLE_DEVICES"

// Env gives the variables, in the form of os/exec, for the environment of a process that opens
// this GPU. With them the driver shows only this GPU, in spite of inherited variables, and
// doesn't set up the others.
func Env(uuid string) []string { return []string{visibleDevices + "=" + uuid} }

var errClosed = errors.New("the device is closed")

// Device is one GPU, or one MIG slice. It is safe for concurrent use.
type Device struct {
	driver  *driver
	gpu     gpu
	ctx     cuContext // the primary context
	grain   int64     // bytes
	options Options

	mu     sync.Mutex
	closed bool
}

// Open opens the GPU of the given name: a uuid in NVML's form (GPU-…, MIG-…), a unique prefix
// of one, or a number in PCI order. It refuses numbers while CUDA_VISIBLE_DEVICES changes
// their meaning.
//
// Errors are a [NoDriver], a [NotFound], a [NoExport], or a call's [Error].
func Open(name string, o Options) (*Device, error) {
	d, err := choose(name, o, load, findVisible)
	if err != nil {
		return nil, err
	}
	if ok, err := d.driver.exports(d.gpu.device); err != nil {
		return nil, d.wrap("open", err)
	} else if !ok {
		return nil, &NoExport{UUID: d.gpu.uuid}
	}
	if d.grain, err = d.driver.granularity(d.gpu.device); err != nil {
		return nil, d.wrap("open", err)
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	return d, nil
}

// choose loads a driver and finds a GPU, without a context yet.
func choose(name string, o Options, load func(library string) (*driver, error), find func([]gpu, string) (gpu, error)) (*Device, error) {
	if o.BlockBytes == 0 {
		o.BlockBytes = defaultBlock
	}
	if o.Ring == 0 {
		o.Ring = defaultRing
	}
	if o.BlockBytes < device.MinBlock || o.Ring < 2 {
		return nil, fmt.Errorf("open GPU %q: staging of %d pieces of %d bytes", name, o.Ring, o.BlockBytes)
	}
	driver, err := load(o.Library)
	if err != nil {
		return nil, err
	}
	list, err := driver.gpus()
	if err != nil {
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	g, err := find(list, name)
	if err != nil {
		return nil, err
	}
	return &Device{driver: driver, gpu: g, options: o}, nil
}

// enter makes the context, which nearly all calls need.
func (d *Device) enter() (err error) {
	if d.ctx, err = d.driver.retain(d.gpu.device); errors.Is(err, OutOfMemory) {
		err = &device.NoMemory{Want: contextBytes}
	}
	if err != nil {
		return d.wrap("make a context on", err)
	}
	return nil
}

func (d *Device) wrap(verb string, err error) error {
	return fmt.Errorf("%s GPU %s: %w", verb, d.gpu.uuid, err)
}

// UUID is the device's uuid in NVML's form; for AMD's GPUs, the address on the PCI bus.
func (d *Device) UUID() string { return d.gpu.uuid }

// Granularity is 2 MiB on all GPUs so far.
func (d *Device) Granularity() int64 { return d.grain }

// Free is how many bytes the driver reports as free now. Other processes may take them.
func (d *Device) Free() (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, d.wrap("ask free memory of", errClosed)
	}
	free, err := d.driver.free(d.ctx)
	if err != nil {
		return 0, d.wrap("ask free memory of", err)
	}
	return free, nil
}

// Alloc makes a buffer. All of its memory is on the GPU when it returns.
func (d *Device) Alloc(bytes int64) (device.Buffer, error) {
	return d.alloc(bytes, func(bytes int64) (*region, error) {
		return d.place(bytes, 1, func(int) (cuHandle, error) { return d.driver.memCreate(d.gpu.device, bytes) })
	})
}

// alloc makes a buffer from the region that place gives for a whole number of grains.
func (d *Device) alloc(bytes int64, place func(int64) (*region, error)) (device.Buffer, error) {
	if bytes <= 0 {
		return nil, d.wrap("allocate memory of", fmt.Errorf("%d bytes", bytes))
	}
	free, err := d.Free()
	if err != nil {
		return nil, err
	}
	if bytes > free {
		return nil, &device.NoMemory{Want: bytes, Free: free}
	}
	bytes = (bytes + d.grain - 1) / d.grain * d.grain
	r, err := place(bytes)
	if err != nil {
		if err = d.short(bytes, err); errors.As(err, new(*device.NoMemory)) {
			return nil, err
		}
		return nil, d.wrap(fmt.Sprintf("allocate %d bytes of", bytes), err)
	}
	return &buffer{region: r}, nil
}

// short makes a NoMemory of the driver's own error: another process took the memory first.
func (d *Device) short(want int64, err error) error {
	if !errors.Is(err, OutOfMemory) {
		return err
	}
	free, _ := d.Free()
	return &device.NoMemory{Want: want, Free: free}
}

// use counts one more user of the context, which calls driver.release at its end. Buffers
// that outlive the device need the context.
func (d *Device) use() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	_, err := d.driver.retain(d.gpu.device)
	return err
}

// Close releases the context. Segments live on. A second Close does nothing.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	if err := d.driver.release(d.gpu.device); err != nil {
		return d.wrap("close", err)
	}
	return nil
}
