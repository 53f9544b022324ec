// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"errors"
	"sync"

	"github.com/wcache/wcache/device"
)

var _ device.Keeper = (*Keeper)(nil)

// Keeper is a GPU whose segments are memory of this process. Other processes open them by
// legacy handles (cuIpcGetMemHandle) while this process lives. Its context, some hundred MiB,
// stays on the GPU with the segments. It is safe for concurrent use.
type Keeper struct {
	*Device
	kept sync.WaitGroup // segments
}

// keptGrain is the multiple, in bytes, to which the driver rounds large allocations up.
const keptGrain = 2 << 20

// OpenKeeper opens a GPU as [Open] does, but also a GPU that can't export memory.
func OpenKeeper(name string, o Options) (*Keeper, error) {
	return keeper(choose(name, o, load, findVisible))
}

func keeper(d *Device, err error) (*Keeper, error) {
	if err != nil {
		return nil, err
	}
	d.grain = keptGrain
	if err := d.enter(); err != nil {
		return nil, err
	}
	return &Keeper{Device: d}, nil
}

// Alloc makes a buffer. All of its memory is on the GPU when it returns.
func (k *Keeper) Alloc(bytes int64) (device.Buffer, error) {
	return k.alloc(bytes, func(bytes int64) (*region, error) {
		r, err := k.region(bytes)
		if err != nil {
			return nil, err
		}
		if r.ptr, err = k.driver.memAlloc(k.ctx, bytes); err != nil {
			return nil, errors.Join(err, r.free())
		}
		r.owned = true
		return r, nil
	})
}

// region allocates memory, and counts a user of the context.
func (k *Keeper) region(bytes int64) (*region, error) {
	if err := k.use(); err != nil {
		return nil, err
	}
	return &region{d: k.Device, keeper: k, bytes: bytes, used: true}, nil
}

// keep makes a segment from a region, which stays until the segment is released.
func (r *region) keep() (device.Segment, error) {
	handle, err := r.d.driver.ipcHandle(r.d.ctx, r.ptr)
	if err != nil {
		return device.Segment{}, err
	}
	s, released, err := device.Keep(handle, r.bytes)
	if err != nil {
		return device.Segment{}, err
	}
	r.keeper.kept.Add(1)
	go func() {
		<-released
		r.keeper.kept.Done()
		_ = r.free() // an error has no reader left; the end of the process frees the memory anyway
	}()
	return s, nil
}

// Wait is part of [device.Keeper].
func (k *Keeper) Wait() { k.kept.Wait() }

// Map maps a segment that another process keeps; the driver refuses this process's own.
func (k *Keeper) Map(s device.Segment) (*Mapping, error) {
	handle, kept, err := s.Handle()
	if err == nil && !kept {
		err = errors.New("the segment has no keeper")
	}
	if err != nil {
		return nil, k.wrap("map segment of", err)
	}
	return k.MapHandle(handle, s.Bytes)
}

// View is Map, as part of [device.Device].
func (k *Keeper) View(s device.Segment) (device.View, error) {
	m, err := k.Map(s)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// MapHandle maps the given number of bytes of another process's memory, by its handle.
func (k *Keeper) MapHandle(handle [device.HandleBytes]byte, bytes int64) (*Mapping, error) {
	r, err := k.region(bytes)
	if err != nil {
		return nil, k.wrap("map segment of", err)
	}
	if r.ptr, err = k.driver.ipcOpen(k.ctx, handle); err != nil {
		return nil, k.wrap("map segment of", errors.Join(err, r.free()))
	}
	r.opened = true
	return &Mapping{region: r}, nil
}
