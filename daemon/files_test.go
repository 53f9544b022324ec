// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/hungfs"
	"github.com/wcache/wcache/internal/testmain"
)

// What can't be written is tried again, ever more rarely, until it can be; changes
// meanwhile cause no more tries, and one is made at the end.
func TestTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		full := errors.New("no space left on device")
		var events []string
		note := func(format string, args ...any) {
			events = append(events, fmt.Sprintf("%v ", time.Since(begin))+fmt.Sprintf(format, args...))
		}
		var room atomic.Bool
		save := func() error {
			note("try")
			if room.Load() {
				return nil
			}
			return full
		}
		w := newFileWriter("/state/manifest.toml", save, func(err error) { note("told %v", err) })
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.run(ctx); close(done) }()
		w.changed()
		time.Sleep(2500 * time.Millisecond)
		w.changed()
		if got := w.problem(); !errors.Is(got, full) {
			t.Errorf("problem %v", got)
		}
		time.Sleep(150 * time.Second)
		room.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.problem(); got != nil {
			t.Errorf("problem %v", got)
		}
		w.changed()
		synctest.Wait()
		end()
		<-done
		want := []string{
			"0s try", "0s told no space left on device", "1s try", "3s try", "7s try", "15s try", "31s try", "1m3s try", "2m3s try",
			"3m3s try", "3m3s told <nil>", "3m3s try", // for the change meanwhile
			"3m32.5s try", "3m32.5s try", // for a change, and at the end
		}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// The end comes while it is being waited for the next try, too.
func TestEndBetweenTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		w := newFileWriter("/x", func() error { tries++; return errors.New("it can't") }, func(error) {})
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.run(ctx); close(done) }()
		w.changed()
		time.Sleep(500 * time.Millisecond)
		end()
		<-done
		if tries != 2 {
			t.Errorf("%d tries", tries)
		}
	})
}

// A file system that hangs is named, and left to itself at the end.
func TestWritingHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		w := newFileWriter("/net/manifest.toml", func() error { <-answer; return nil }, func(error) {})
		ctx, end := context.WithCancel(t.Context())
		var writing sync.WaitGroup
		writing.Go(func() { w.run(ctx) })
		w.changed()
		time.Sleep(checkLimit)
		if err := w.problem(); err != nil {
			t.Errorf("problem %v", err)
		}
		time.Sleep(time.Second)
		const want = "write /net/manifest.toml: the file system has not answered since 2000-01-01T00:00:00Z"
		if err := w.problem(); err == nil || err.Error() != want {
			t.Errorf("problem %v, want %s", err, want)
		}
		end()
		log := new(testmain.Log)
		s := &Server{base: &base{log: slog.New(slog.NewTextHandler(log, nil))}}
		before := time.Now()
		s.endOf(&writing)
		if took := time.Since(before); took != endLimit || !strings.Contains(log.String(), "state is not written at the end: the file system does not answer") {
			t.Errorf("it took %v: %s", took, log)
		}
		close(answer)
		s.endOf(&writing)
	})
}

// With its state on a file system that hangs, a server answers, and ends.
func TestStateHangs(t *testing.T) {
	t.Parallel()
	dir := private(t)
	do(t, os.Mkdir(filepath.Join(dir, "mnt"), 0o700))
	hung, err := hungfs.Mount(filepath.Join(dir, "mnt"), fstest.MapFS{"wcache/x": &fstest.MapFile{}})
	var unavailable *hungfs.Unavailable
	if errors.As(err, &unavailable) {
		t.Skip(err, "; TestWritingHangs has the rest")
	}
	do(t, err)
	defer func() { do(t, hung.Close()) }()
	i := start(t, func(s *setup) {
		s.Manifest = filepath.Join(dir, "mnt", "wcache", "manifest.toml")
		s.IndexPath = filepath.Join(dir, "mnt", "wcache", "index.json")
	})
	hung.Hang()
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	i.status(t)
	do(t, i.stop())
	if !strings.Contains(i.log.String(), "state is not written at the end") {
		t.Error("it is not in the log")
	}
	hung.Resume()
}

// With its state on a file system that hangs, a server starts, and serves what says itself
// what it is.
func TestStateHangsAtStart(t *testing.T) {
	t.Parallel()
	dir := private(t)
	do(t, os.Mkdir(filepath.Join(dir, "mnt"), 0o700))
	hung, err := hungfs.Mount(filepath.Join(dir, "mnt"), fstest.MapFS{"wcache/x": &fstest.MapFile{}})
	var unavailable *hungfs.Unavailable
	if errors.As(err, &unavailable) {
		t.Skip(err, "; TestNewerManifest has a manifest that can't be read")
	}
	do(t, err)
	defer func() { do(t, hung.Close()) }()
	store := newFDStore(t)
	first := startStored(t, store)
	request := getState(t, key(t, "llama-tp1r0"))
	wantAnswer(t, engineAsk(t, first.target, request), "ok")
	do(t, first.stop())
	hung.Hang()
	first.o.Manifest, first.o.IndexPath = filepath.Join(dir, "mnt", "wcache", "manifest.toml"), filepath.Join(dir, "mnt", "wcache", "index.json")
	second := restart(t, first, store)
	wantAnswer(t, engineAsk(t, second.target, request), "ok")
	if c := second.status(t).Counts; c.Loads != 0 || c.Hits != 1 {
		t.Errorf("counts are %+v", c)
	}
	for _, want := range []string{`msg="manifest is not used"`, `msg="index of model directories starts anew"`, "has not answered within 3s"} {
		if !strings.Contains(second.log.String(), want) {
			t.Errorf("%s is not in the log", want)
		}
	}
	hung.Resume()
}
