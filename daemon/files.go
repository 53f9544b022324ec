// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/wcache/wcache/manifest"
)

// The pauses after failed tries to write a file: each is twice the one before, from
// firstPause to maxPause.
const (
	firstPause = time.Second
	maxPause   = time.Minute
)

// endLimit is how long the server's end waits for files that are being written. Their
// contents are also in the store, or the next process can find them out.
const endLimit = 5 * time.Second

// fileWriter writes a file in the background after each change, and tries again until it
// succeeds, for instance while the disk is full. Its methods are safe for concurrent use.
type fileWriter struct {
	path string
	save func() error
	told func(err error) // called at the first failure, and with nil at the success after it
	wake chan struct{}   // a token when the file is out of date

	mu    sync.Mutex
	begun time.Time // start of the try that is under way; zero: none is
	err   error     // of the last try
}

func newFileWriter(path string, save func() error, told func(err error)) *fileWriter {
	return &fileWriter{path: path, save: save, told: told, wake: make(chan struct{}, 1)}
}

// changed has the file written soon.
func (w *fileWriter) changed() {
	select {
	case w.wake <- struct{}{}:
	default: // the write that is due includes this change
	}
}

// run writes the file after changes until ctx is done, and then once more, with the last
// state.
func (w *fileWriter) run(ctx context.Context) {
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			w.try()
			return
		}
		for pause := firstPause; !w.try(); pause = min(2*pause, maxPause) {
			again := time.NewTimer(pause)
			select {
			case <-again.C:
			case <-ctx.Done():
				again.Stop()
				w.try()
				return
			}
		}
	}
}

// try writes the file once.
func (w *fileWriter) try() bool {
	if w.path == "" {
		return true
	}
	w.mu.Lock()
	w.begun = time.Now()
	w.mu.Unlock()
	err := w.save()
	w.mu.Lock()
	before := w.err
	w.begun, w.err = time.Time{}, err
	w.mu.Unlock()
	if (before == nil) != (err == nil) {
		w.told(err)
	}
	return err == nil
}

// problem is why the file is out of date, nil if it isn't or soon won't be.
func (w *fileWriter) problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.begun.IsZero() && time.Since(w.begun) > checkLimit {
		//diag serving PATH TIME
		// The file system of this file hangs. Mend the mount; the daemon serves on and tries again.
		return fmt.Errorf("write %s: the file system has not answered since %s", w.path, w.begun.UTC().Format(time.RFC3339))
	}
	return w.err
}

// manifestWriter makes the writer of the manifest.
func (s *Server) manifestWriter() *fileWriter {
	save := func() error {
		return (&manifest.Manifest{Uncorrected: s.gpu.uncorrected(), Entries: s.cache.Records()}).Save(s.o.Manifest)
	}
	return newFileWriter(s.o.Manifest, save, func(err error) {
		if err != nil {
			//diag serving
			// The daemon can't write the record of its entries, for the logged reason, mostly a full
			// disk. Make room; the daemon tries again, and `wcache status` shows the problem
			// meanwhile. The next restart drops weights that are not in the record.
			s.log.Error("manifest is not written, serving goes on", "err", err)
			return
		}
		s.log.Info("manifest is written again")
	})
}

// indexWriter makes the writer of the index of model directories.
func (s *Server) indexWriter() *fileWriter {
	save := func() error {
		if err := os.MkdirAll(filepath.Dir(s.o.IndexPath), 0o700); err != nil {
			return err
		}
		return s.o.Index.Save(s.o.IndexPath)
	}
	return newFileWriter(s.o.IndexPath, save, func(err error) {
		if err != nil {
			//diag serving
			// The daemon can't write the record of known directories, for the logged reason. It works
			// on, and searches `roots` again after its next start; make room on the disk.
			s.log.Warn("index of model directories is not kept", "err", err)
			return
		}
		s.log.Info("index of model directories is kept again")
	})
}

// endOf waits for the end of the file writers, for endLimit at most, since a file system
// may hang.
func (s *Server) endOf(writing *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		writing.Wait()
		close(ended)
	}()
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		//diag serving
		// The daemon ended without writing its record, as the file system hangs. Mend the mount
		// before the next start.
		s.log.Error("state is not written at the end: the file system does not answer", "within", endLimit)
	}
}
