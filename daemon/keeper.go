// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"os"
	"path/filepath"

	"github.com/wcache/wcache/manifest"
)

// changed is what the cache calls when entries or engines come or go. The
// manifest is written beside the requests, not by them.
func (s *Server) changed() {
	select {
	case s.dirty <- struct{}{}:
	default: // whoever writes next sees this change too
	}
	s.tellStatus()
	s.hashing.wake()
}

// keepManifest writes the manifest after changes until ctx is done, and then
// once more: it says what was here.
func (s *Server) keepManifest(ctx context.Context) {
	for {
		select {
		case <-s.dirty:
			s.saveManifest()
		case <-ctx.Done():
			s.saveManifest()
			return
		}
	}
}

func (s *Server) saveManifest() {
	if s.o.Manifest == "" {
		return
	}
	err := (&manifest.Manifest{Uncorrected: s.gpu.uncorrected(), Entries: s.cache.Records()}).Save(s.o.Manifest)
	s.mu.Lock()
	before := s.saveErr
	s.saveErr = err
	s.mu.Unlock()
	if err != nil && before == nil { // once, not with every change
		s.log.Error("manifest is not written, serving goes on", "err", err)
	}
}

func (s *Server) saveIndex() {
	if s.o.IndexPath == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(s.o.IndexPath), 0o700)
	if err == nil {
		err = s.o.Index.Save(s.o.IndexPath)
	}
	if err != nil {
		s.log.Warn("index of model directories is not kept", "err", err)
	}
}
