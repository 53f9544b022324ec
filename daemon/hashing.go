// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/stamp"
)

// hashing computes the sha256 of files at idle priority, while no load and no verification
// runs. Safe for concurrent use.
type hashing struct {
	*base
	cache *cache.Cache
	more  chan struct{} // a token when there may be something to do

	mu      sync.Mutex
	busy    int                     // loads and verifications that are under way
	cancel  context.CancelCauseFunc // ends the job that runs, nil: none runs
	givenUp map[string]time.Time    // entries whose files can't be hashed: when each was loaded, by ID
}

func newHashing(b *base) *hashing {
	return &hashing{base: b, more: make(chan struct{}, 1), givenUp: make(map[string]time.Time)}
}

// errBusy is the error of a job that was ended because a load or verification began.
var errBusy = errors.New("a load or a verification has begun")

// wake has the hashing look for something to do.
func (h *hashing) wake() {
	select {
	case h.more <- struct{}{}:
	default: // it will look again anyway
	}
}

// pause ends the job that runs, and no other begins until the caller calls resume, once.
func (h *hashing) pause() (resume func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy++
	if h.cancel != nil {
		h.cancel(errBusy)
	}
	return func() {
		h.mu.Lock()
		h.busy--
		h.mu.Unlock()
		h.wake()
	}
}

// begin gives the context of a job, which pause ends, and a function to call at the job's
// end; false while a load or verification runs.
func (h *hashing) begin(ctx context.Context) (context.Context, func(), bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy > 0 {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	h.cancel = cancel
	return ctx, func() {
		h.mu.Lock()
		h.cancel = nil
		h.mu.Unlock()
		cancel(nil)
	}, true
}

// maxGivenUp is more than the entries that a GPU has room for. Hashing tries forgotten
// entries again.
const maxGivenUp = 1000

// giveUp notes an entry whose files can't be hashed.
func (h *hashing) giveUp(e manifest.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.givenUp) >= maxGivenUp {
		clear(h.givenUp)
	}
	h.givenUp[e.ID] = e.Loaded
}

func (h *hashing) hopeless(e manifest.Entry) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	loaded, ok := h.givenUp[e.ID]
	return ok && loaded.Equal(e.Loaded)
}

// run computes, until ctx is done, the digests that the records of entries lack, while
// nothing is loaded.
func (h *hashing) run(ctx context.Context) {
	for {
		select {
		case <-h.more:
			for h.next(ctx) {
			}
		case <-ctx.Done():
			return
		}
	}
}

// next computes the digests of one entry, and reports whether there may be another.
func (h *hashing) next(ctx context.Context) bool {
	if h.configuration().Verify == config.VerifyOff || len(h.o.Loader.Command) == 0 {
		return false
	}
	records := h.cache.Records()
	h.shareDigests(records)
	for _, e := range h.cache.Records() {
		files := unhashed(e)
		if len(files) == 0 || h.hopeless(e) {
			continue
		}
		job, end, ok := h.begin(ctx)
		if !ok {
			return false
		}
		begin := time.Now()
		err := loader.Hash(job, h.o.Loader, files, func(p loader.Progress) {
			if p.Digest != nil {
				h.digested(files[p.Digest.File], *p.Digest)
			}
		})
		early := job.Err() != nil
		end()
		switch {
		case early:
			return false
		case err != nil:
			h.giveUp(e)
			//diag serving
			// The daemon could not read a file of a loaded model, or the file has changed; the line
			// gives the reason. Its sha256 is not known. The daemon tries again after the next load
			// of the model.
			h.log.Warn("files are not hashed", "model", e.Dir, "err", err)
		default:
			h.log.Debug("hashed", "model", e.Dir, "files", len(files), "seconds", time.Since(begin).Seconds())
		}
		return true
	}
	return false
}

// unhashed are the files that an entry was loaded from and that have no digest yet.
func unhashed(e manifest.Entry) []layout.File {
	var list []layout.File
	for _, f := range e.Files {
		if f.Used && f.SHA256 == "" && f.Stamp != (stamp.Stamp{}) {
			list = append(list, layout.File{Path: filepath.Join(e.Dir, f.Name), Stamp: f.Stamp})
		}
	}
	return list
}

// shareDigests copies digests from the given records to entries with the same files, such
// as other ranks of the model.
func (h *hashing) shareDigests(records []manifest.Entry) {
	known := make(map[stamp.Stamp]manifest.File)
	for _, e := range records {
		for _, f := range e.Files {
			if f.SHA256 != "" {
				known[f.Stamp] = f
			}
		}
	}
	h.cache.Amend(func(f manifest.File) manifest.File {
		if k, ok := known[f.Stamp]; ok && f.SHA256 == "" {
			f.SHA256, f.Hub = k.SHA256, k.Hub
		}
		return f
	})
}

// digested records a file's digest in every entry that was loaded from the file.
func (h *hashing) digested(file layout.File, d loader.Digest) {
	h.cache.Amend(func(f manifest.File) manifest.File {
		if f.Stamp == file.Stamp {
			f.SHA256, f.Hub = d.SHA256, d.Hub
		}
		return f
	})
	if d.Hub != "" && d.Hub != d.SHA256 {
		//diag serving
		// The sha256 of a file is not the one in its name in the Hugging Face cache.
		// `wcache status` shows the file and what to do.
		h.log.Error("file is damaged", "file", file.Path, "sha256", d.SHA256, "name", d.Hub)
	}
}
