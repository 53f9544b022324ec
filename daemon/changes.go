// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import "github.com/wcache/wcache/device"

// changed is what the cache calls when entries or engines come or go.
func (s *Server) changed() {
	s.manifest.changed()
	s.tellStatus()
	s.hashing.wake()
}

// learned acts on what a look at the GPU found. What was in its memory is gone for
// engines too: they are told by the end of their watches.
func (s *Server) learned(h *device.GPU, gone string, counted bool) {
	if counted {
		s.changed() // the manifest has it
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
