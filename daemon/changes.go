// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import "github.com/wcache/wcache/device"

// changed is called by the cache when entries or engines come or go.
func (s *Server) changed() {
	s.manifest.changed()
	s.tellStatus()
	s.hashing.wake()
}

// learned acts on the result of a GPU check. When the GPU has lost its memory, engines
// have lost it too: the end of their watches tells them.
func (s *Server) learned(h *device.GPU, gone string, counted bool) {
	if counted {
		s.changed() // the manifest holds the count
	}
	s.mu.Lock()
	before := s.gpuState
	s.gpuState = h.State
	s.mu.Unlock()
	if h.State != before && (before != "" || h.State != device.GPUOK) {
		//diag serving STATE
		// The state of the GPU has changed; the line gives the reason. What to do about each state
		// is in wcache(1), under "Loading".
		s.log.Warn("GPU is "+h.State, "gpu", h.UUID, "reason", h.Reason)
	}
	if gone == "" {
		return
	}
	if n := s.cache.Drop(gone); n > 0 {
		//diag serving
		// The GPU was lost or reset, or its memory had an error that was not corrected, so that its
		// contents can't be trusted. The daemon tells the engines, and loads again on demand when
		// the GPU works; restart the engines.
		s.log.Error("all entries are dropped", "entries", n, "reason", gone)
	}
	s.watches.endAll()
}
