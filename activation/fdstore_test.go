// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation_test

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/internal/fd"
)

// However many descriptors come at once, no more are sent than the manager keeps: those
// that are too many it would close, and tell nobody.
func TestFDStoreAtOnce(t *testing.T) {
	path := filepath.Join(shortDir(t), "notify")
	newManager(t, path)
	n, err := start(t, "NOTIFY_SOCKET="+path, "WCACHE_FDSTORE=5")
	if err != nil {
		t.Fatal(err)
	}
	f, err := fd.Sealed("wcache-test", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := activation.NewFDStore(n, "k")
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
	for what, err := range map[string]error{"remove": s.Remove("k"), "room": s.Room(1), "put": s.Put("z", f)} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Room(1); err == nil {
		t.Error("there is room for a sixth")
	}
}
