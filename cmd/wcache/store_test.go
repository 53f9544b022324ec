// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/daemon"
	"github.com/wcache/wcache/internal/fd"
)

// However many descriptors come at once, no more are sent than the manager keeps: those
// that are too many it would close, and tell nobody.
func TestStoreAtOnce(t *testing.T) {
	dir := manualDir(t)
	path := filepath.Join(dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WCACHE_FDSTORE", "5")
	n, err := activation.NewNotifier()
	must(t, err)
	defer n.Close()
	f, err := fd.Sealed("wcache-test", []byte("x"))
	must(t, err)
	defer f.Close()
	s := newStore(n, []daemon.Kept{{Name: "k"}})
	var kept, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if s.Put(string(rune('a'+i)), f) == nil {
				kept.Add(1)
			} else {
				refused.Add(1)
			}
		})
	}
	all.Wait()
	if kept.Load() != 4 || refused.Load() != 4 {
		t.Errorf("%d are kept, %d refused", kept.Load(), refused.Load())
	}
	must(t, s.Remove("k"))
	must(t, s.Room(1))
	must(t, s.Put("z", f))
	if err := s.Room(1); err == nil {
		t.Error("there is room for a sixth")
	}
}
