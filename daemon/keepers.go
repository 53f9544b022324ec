// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"fmt"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/loader"
)

// device is what the loader opens.
func (s *Server) device(c config.Config) string {
	if c.Handles == config.HandlesLegacy && s.o.Legacy != "" {
		return s.o.Legacy
	}
	return s.o.Device
}

// keeps reports whether entries are memory that a loader keeps. An engine opens
// that by a handle and needs nothing of this process.
func (s *Server) keeps() bool {
	return s.o.AMD || s.o.Legacy != "" && s.configuration().Handles == config.HandlesLegacy
}

// keep waits for the end of a loader that keeps what it has filled, and drops the
// entry then: its memory has ended too. When the server ends, it waits for the
// keeper's end, unless the next process is to find the memory: what the service
// manager does to the keeper meanwhile is no affair of this one.
func (s *Server) keep(k *loader.Keeper) {
	s.log.Info("keeper started", "keeper", k.PID())
	s.keepers.Go(func() {
		select {
		case <-k.Ended():
			n := s.cache.DropGone()
			s.log.Info("keeper ended", "keeper", k.PID(), "state", k.End(), "dropped", n)
		case <-s.ctx.Done():
			if s.o.Store == nil {
				s.log.Info("keeper ended", "keeper", k.PID(), "state", k.End())
			}
		}
	})
}

// legacy are the handles of segments that are kept, nil of those that are not.
func legacy(list []device.Segment) ([][device.HandleBytes]byte, error) {
	var handles [][device.HandleBytes]byte
	for i, seg := range list {
		handle, kept, err := seg.Handle()
		if !kept {
			return nil, nil
		}
		if err == nil {
			err = seg.Gone()
		}
		if err != nil {
			return nil, fmt.Errorf("hand out segment %d: %w", i, err)
		}
		handles = append(handles, handle)
	}
	return handles, nil
}
