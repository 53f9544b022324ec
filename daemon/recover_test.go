// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/protocol"
)

// startStored is start with a store.
func startStored(t *testing.T, store *fdStore) *instance {
	return start(t, func(s *setup) { s.Store = store })
}

// restart runs the next process of an instance that has ended, on its paths.
func restart(t *testing.T, old *instance, store *fdStore) *instance {
	t.Helper()
	i := &instance{dir: old.dir, log: new(testmain.Log), config: old.config, target: old.target, draft: old.draft, control: old.control}
	o := old.o
	o.Store, o.CheckSegment, o.Index = store, host.Check, newIndex(t)
	o.Log = slog.New(slog.NewTextHandler(i.log, nil))
	o.Configure = func() (config.Config, error) { return i.config, nil }
	var err error
	i.Server, err = New(o)
	do(t, err)
	i.Recover(store.pass(t))
	i.listen(t)
	return i
}

// elsewhere is an instance that has ended, with a folder of its own.
func (i *instance) elsewhere(t *testing.T) *instance {
	dir := private(t)
	o := i.o
	o.Manifest, o.IndexPath = filepath.Join(dir, "manifest.toml"), filepath.Join(dir, "index.json")
	return &instance{
		Server: &Server{base: &base{o: o}}, dir: dir, config: i.config,
		target: filepath.Join(dir, "t.sock"), draft: filepath.Join(dir, "d.sock"), control: filepath.Join(dir, "t.control"),
	}
}

// sums are the tensors' data by name, as an engine would map it.
func sums(t *testing.T, r *protocol.Reply) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, e := range r.Entries {
		b, err := os.ReadFile(e.Path)
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name] = fmt.Sprintf("%x at %d of %v %v", sha256.Sum256(b), e.Offset, e.Shape, e.Stride)
	}
	return out
}

// S1: the next process serves what the last one held, to the same engines, and
// their watches go on as if nothing had been.
func TestRecover(t *testing.T) {
	store := newFDStore(t)
	first := startStored(t, store)
	llama, qwen2 := recorded(t, "0.33.0-get_state-llama-tp1r0"), recorded(t, "0.33.0-get_state-qwen2-tp1r0")
	before := sums(t, engineAsk(t, first.target, llama))
	stays, goes := startProcess(t, "engine", first.target), startProcess(t, "engine", first.target)
	for _, p := range []*process{stays, goes} {
		p.send(t, qwen2)
		if got := p.line(t); got != "ok" {
			t.Fatal(got)
		}
	}
	watch := send(t, first.target, nil)
	do(t, protocol.WriteFrame(watch, recorded(t, "0.33.0-watch")))
	wantAnswer(t, receive(t, watch), "ok")
	testmain.Eventually(t, "the watch is in the store", func() bool { return store.names() == "s- s- t- t- w-" })
	do(t, first.stop())
	goes.kill() // while nobody looks

	second := restart(t, first, store)
	status := second.status(t)
	var attached []int
	for _, e := range status.Entries {
		if e.State != "ready" {
			t.Errorf("%s is %s", e.Model, e.State)
		}
		if filepath.Base(e.Model) == "qwen2" {
			for _, x := range e.Engines {
				attached = append(attached, x.PID)
			}
		}
	}
	if want := []int{stays.Process.Pid}; len(status.Entries) != 2 || !slices.Equal(attached, want) {
		t.Errorf("%d entries, attached to qwen2 %v, want 2 and %v", len(status.Entries), attached, want)
	}
	after := sums(t, engineAsk(t, second.target, llama))
	for name, sum := range before {
		if after[name] != sum {
			t.Errorf("%s was %s, is %s", name, sum, after[name])
		}
	}
	if c := second.status(t).Counts; c.Loads != 0 || c.Hits != 1 {
		t.Errorf("counts %+v: it was not served from memory", c)
	}

	// The watch neither ended with the first process nor does with the second.
	do(t, second.stop())
	third := restart(t, second, store)
	quiet(t, watch)
	do(t, watch.Close())
	testmain.Eventually(t, "the watch has left the store", func() bool { return store.names() == "s- s- t- t-" })

	// The engine is waited for as by the process that it asked.
	stays.kill()
	testmain.Eventually(t, "the engine is let go", func() bool {
		for _, e := range third.status(t).Entries {
			if filepath.Base(e.Model) == "qwen2" {
				return len(e.Engines) == 0
			}
		}
		return false
	})
}

// What an engine was answered is there for it after a crash, whatever else the daemon
// had no time for: the entry, and that it is attached. A copy of what the store had at
// the moment of the answer stands for the crash.
func TestAnsweredMeansKept(t *testing.T) {
	store := newFDStore(t)
	first := startStored(t, store)
	k := key(t, "llama-tp1r0")
	engine := startProcess(t, "engine", first.target)
	engine.send(t, getState(t, k))
	if got := engine.line(t); got != "ok" {
		t.Fatal(got)
	}
	crashed := newFDStore(t)
	crashed.held = store.pass(t)
	second := restart(t, first.elsewhere(t), crashed)
	if e := second.entry(t, k); e == nil || len(e.Engines) != 1 || e.Engines[0].PID != engine.Process.Pid {
		t.Errorf("the next process has %+v", e)
	}
	var inUse *cache.InUse
	if _, err := second.evict(t.Context(), control.Evict{}); !errors.As(err, &inUse) {
		t.Errorf("evicted under its engine: %v", err)
	}
	engine.kill()
	testmain.Eventually(t, "the engine is let go", func() bool { return len(second.entry(t, k).Engines) == 0 })
	third := restart(t, second.elsewhere(t), crashed)
	if e := third.entry(t, k); e == nil || len(e.Engines) != 0 {
		t.Errorf("after the engine's end the next process has %+v", e)
	}
}

// quiet checks that a connection is open and says nothing.
func quiet(t *testing.T, c net.Conn) {
	t.Helper()
	do(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection has ended: %v", err)
	}
	do(t, c.SetReadDeadline(time.Time{}))
}

// Entries that don't fit the manifest exactly are dropped, from the store too, and loaded again
// on request.
func TestRecoverDrops(t *testing.T) {
	memory := func(t *testing.T, bytes int, seal bool) *fd.FD {
		f, err := fd.Memory("wcache-other")
		do(t, err, unix.Ftruncate(f.Int(), int64(bytes)))
		if seal {
			do(t, f.Seal())
		}
		return f
	}
	replace := func(t *testing.T, s *fdStore, prefix string, f *fd.FD) {
		for i, k := range s.held {
			if strings.HasPrefix(k.Name, prefix) {
				do(t, k.FD.Close())
				s.held[i].FD = f
			}
		}
	}
	// relabel changes the record in front of the table; without a change it takes the
	// label away, as tables had none with schema 1.
	relabel := func(change func(*manifest.Entry)) func(*testing.T, *fdStore, *manifest.Entry) {
		return func(t *testing.T, s *fdStore, _ *manifest.Entry) {
			i := slices.IndexFunc(s.held, func(k Kept) bool { return strings.HasPrefix(k.Name, "t-") })
			e, b, err := readTable(s.held[i].FD)
			do(t, err)
			if change != nil {
				change(&e)
				b, err = manifest.EncodeLabel(e, b)
				do(t, err)
			}
			f, err := fd.Sealed("wcache-table", b)
			do(t, err)
			replace(t, s, "t-", f)
		}
	}
	pipe := func(t *testing.T) *fd.FD {
		var p [2]int
		do(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		do(t, unix.Close(p[0]))
		f, err := fd.New(p[1])
		do(t, err)
		return f
	}
	tests := []struct {
		name   string
		change func(t *testing.T, s *fdStore, e *manifest.Entry)
		want   string // in the log
		left   string // in the store
	}{
		{"no table", func(t *testing.T, s *fdStore, e *manifest.Entry) { do(t, s.Remove(e.Table)) },
			"its descriptors are gone", ""},
		{"neither table nor manifest", func(t *testing.T, s *fdStore, e *manifest.Entry) { do(t, s.Remove(e.Table)); e.ID = "" },
			"no entry and no connection goes with it", ""},
		{"no segment", func(t *testing.T, s *fdStore, e *manifest.Entry) { do(t, s.Remove(e.Pieces[0].Name)) },
			"its descriptors are gone", ""},
		{"neither", func(t *testing.T, s *fdStore, e *manifest.Entry) {
			do(t, s.Remove(e.Table), s.Remove(e.Pieces[0].Name))
		}, "its descriptors are gone: the service was stopped, or the machine was started again", ""},
		{"segment of another size", func(t *testing.T, s *fdStore, _ *manifest.Entry) {
			replace(t, s, "s-", memory(t, 4096, true))
		}, "reason=\"check segment: 4096 bytes", ""},
		{"segment that isn't sealed", func(t *testing.T, s *fdStore, e *manifest.Entry) {
			replace(t, s, "s-", memory(t, int(e.Pieces[0].Bytes), false))
		}, "reason=\"check segment: ", ""},
		{"segment that is no memory", func(t *testing.T, s *fdStore, _ *manifest.Entry) { replace(t, s, "s-", pipe(t)) },
			"reason=\"check segment: not a memory file", ""},
		{"table that is no memory", func(t *testing.T, s *fdStore, _ *manifest.Entry) { replace(t, s, "t-", pipe(t)) },
			"read memory file: not a memory file", ""},
		{"table that is none", func(t *testing.T, s *fdStore, _ *manifest.Entry) {
			replace(t, s, "t-", memory(t, 100, true))
		}, "entry is dropped", ""},
		{"table of another", relabel(func(e *manifest.Entry) { e.Tensors++ }), "its table belongs to another entry", ""},
		{"segment of another entry", relabel(func(e *manifest.Entry) { e.Pieces[0].Bytes += 4096 }),
			"its memory has 212992 bytes in the table and 217088 in its record", ""},
		{"another device", relabel(func(e *manifest.Entry) { e.Device = "GPU-1" }), `it was made for the device \"GPU-1\"`, ""},
		{"label of another table", relabel(func(e *manifest.Entry) { e.Table = "t-1" }), `its label belongs to \"t-1\"`, "s- t-"},
		{"no label", relabel(nil), "recovered entries=1 of=1", "s- t-"},
		{"neither label nor manifest", func(t *testing.T, s *fdStore, e *manifest.Entry) { relabel(nil)(t, s, e); e.ID = "" },
			"no entry and no connection goes with it", ""},
		{"a row of another table", func(_ *testing.T, _ *fdStore, e *manifest.Entry) { e.Tensors++; e.Bytes++; e.Device = "GPU-1" },
			"recovered entries=1 of=1", "s- t-"},
		{"a name that comes twice", func(t *testing.T, s *fdStore, e *manifest.Entry) {
			f := memory(t, int(e.Pieces[0].Bytes), true)
			do(t, s.Put(e.Pieces[0].Name, f), f.Close())
		}, "another descriptor has this name", ""},
		{"a name of nobody", func(t *testing.T, s *fdStore, _ *manifest.Entry) {
			f := memory(t, 1, true)
			do(t, s.Put("x-1", f), f.Close())
		}, "name=x-1 reason=\"no entry and no connection goes with it", "s- t-"},
		{"a watch that is no connection", func(t *testing.T, s *fdStore, _ *manifest.Entry) {
			f := memory(t, 1, true)
			do(t, s.Put("w-1", f), f.Close())
		}, "name=w-1 reason=\"not a connection", "s- t-"},
		{"a watch that is another socket", func(t *testing.T, s *fdStore, _ *manifest.Entry) {
			n, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			do(t, err)
			f, err := fd.New(n)
			do(t, err, s.Put("w-1", f), f.Close())
		}, "name=w-1 reason=\"not a connection of an engine", "s- t-"},
		{"a watch whose engine has ended", func(t *testing.T, s *fdStore, _ *manifest.Entry) {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			do(t, err, unix.Close(p[1]))
			f, err := fd.New(p[0])
			do(t, err, s.Put("w-1", f), f.Close())
		}, "recovered", "s- t-"},
		{"an engine of the same pid", func(t *testing.T, s *fdStore, e *manifest.Entry) {
			do(t, s.Remove(attachedName))
			e.Engines[0].Start++
		},
			"recovered entries=1", "s- t-"},
		{"no manifest", func(_ *testing.T, _ *fdStore, e *manifest.Entry) { e.ID = "" },
			"recovered entries=1 of=1", "s- t-"},
		{"a broken row", func(_ *testing.T, _ *fdStore, e *manifest.Entry) { e.Table = "" },
			"entry of the manifest is not used", "s- t-"},
	}
	request := recorded(t, "0.33.0-get_state-llama-tp1r0")
	left := newFDStore(t)
	first := startStored(t, left)
	wantAnswer(t, engineAsk(t, first.target, request), "ok")
	do(t, first.stop())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := newFDStore(t)
			store.held = left.pass(t)
			m, err := manifest.Load(first.o.Manifest)
			do(t, err)
			first := first.elsewhere(t)
			if tt.change(t, store, &m.Entries[0]); m.Entries[0].ID == "" {
				m.Entries = nil
			}
			do(t, m.Save(first.o.Manifest))

			second := restart(t, first, store)
			testmain.Eventually(t, "the store has "+tt.left, func() bool { return store.names() == tt.left })
			if log := second.log.String(); !strings.Contains(log, tt.want) {
				t.Errorf("log without %q:\n%s", tt.want, log)
			}
			status := second.status(t)
			if got := len(status.Entries) > 0; got != (tt.left != "") {
				t.Errorf("%d entries", len(status.Entries))
			}
			if strings.HasPrefix(tt.name, "an engine") && len(status.Entries[0].Engines) > 0 {
				t.Errorf("attached: %v", status.Entries[0].Engines)
			}
			wantAnswer(t, engineAsk(t, second.target, request), "ok")
			if got := store.names(); got != "s- t-" {
				t.Errorf("the store has %s", got)
			}
		})
	}
}

// A change of the pins while no daemon ran counts from the next start.
func TestRecoverPinned(t *testing.T) {
	// While other tests start processes, one of these may hold the lock of a socket for
	// a moment longer.
	store := newFDStore(t)
	i := startStored(t, store)
	k := key(t, "llama-tp1r0")
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "ok")
	pin, err := filepath.Abs(filepath.Join(checkpoints, "llama"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pins := range [][]string{{pin}, nil} {
		do(t, i.stop())
		i.config.Pins = pins
		i = restart(t, i, store)
		if e := i.entry(t, k); e == nil || e.Pinned != (pins != nil) {
			t.Errorf("pins %q: %+v", pins, e)
		}
	}
}

// A manifest that can't be read, such as one of a newer version, is set aside and not
// overwritten; what says itself what it is stays.
func TestNewerManifest(t *testing.T) {
	store := newFDStore(t)
	first := startStored(t, store)
	wantAnswer(t, engineAsk(t, first.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	do(t, first.stop())
	const newer = "schema = 99\nmeaning = \"unknown\"\n"
	path := first.o.Manifest
	do(t, os.WriteFile(path, []byte(newer), 0o600))
	second := restart(t, first, store)
	if b, err := os.ReadFile(path + ".unused"); err != nil || string(b) != newer {
		t.Errorf("set aside is %q, %v", b, err)
	}
	if c := second.status(t).Counts; len(second.status(t).Entries) != 1 || c.Loads != 0 {
		t.Errorf("counts are %+v", c)
	}
}
