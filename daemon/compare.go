// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/tensor"
)

//diag entries
// Another version of wcache has loaded this entry, and this version places tensors differently, so
// the daemon can't compare the memory with the files. Engines can go on; evict the entry to have it
// loaded anew.

// errOtherLayout is the error of a comparison when a load would now place tensors
// differently than in the entry: this version reads a field of the key differently, or
// config.json has changed.
var errOtherLayout = errors.New("verify memory: its files give another layout now than when it was loaded")

// compared is the result of a comparison of an entry's memory with its files.
type compared struct {
	difference *loader.Difference // nil: all bytes are equal
	files      []manifest.File    // of the directory as it was read, with digests if asked for
}

// against has a child compare an entry's memory with what its directory holds now,
// whatever the times of the files are. With digests, the child computes the digests of
// the files too. If a file is written meanwhile, filesChanged is true for the error.
// Progress may be nil.
func (l *loads) against(ctx context.Context, h *cache.Hold, digests bool, progress func(loader.Progress)) (*compared, error) {
	e, c := h.Record(), l.configuration()
	whole := ctx
	ctx, cancel := l.within(ctx)
	defer cancel()
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	target, err := beside(ctx, l.checks, func(context.Context) (*resolve.Target, error) { return resolve.Plan(l.finder.options(c), e.Key, e.Dir) })
	if err != nil {
		return nil, err
	}
	defer target.Dir.Close()
	if !sameLayout(target.Plan.Table, h.Table()) {
		return nil, errOtherLayout
	}
	if err := roomForFiles(); err != nil {
		return nil, err
	}
	defer l.hashing.pause()()
	out := &compared{files: manifestFiles(target.Dir.Record())}
	job := l.job(c, e.Device, target.Plan)
	var places []int // in out.files
	if digests {
		job.Digests, places = wanted(e.Dir, out.files, nil)
	}
	out.difference, err = l.o.Verify(ctx, l.o.Loader, job, h.Segment(), func(p loader.Progress) {
		if p.Digest != nil {
			f := &out.files[places[p.Digest.File]]
			f.SHA256, f.Hub = p.Digest.SHA256, p.Digest.Hub
		}
		if progress != nil {
			progress(p)
		}
	})
	if err != nil {
		return nil, l.blame(whole, err, time.Now())
	}
	return out, nil
}

// sameLayout reports whether two tables are equal, except for the sizes of their
// segments, which devices round up.
func sameLayout(plan, held *tensor.Table) bool {
	p, h := *plan, *held
	p.Segment = h.Segment
	x, err := p.Encode()
	if err != nil {
		return false
	}
	y, err := h.Encode()
	return err == nil && bytes.Equal(x, y)
}
