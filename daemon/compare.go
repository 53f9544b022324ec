// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// errOtherLayout is the error of a comparison with files of which a load would make
// something else than what is held: a field of the key is seen otherwise by this
// version, or config.json has changed.
var errOtherLayout = errors.New("verify memory: its files give another layout now than when it was loaded")

// compared is what a comparison of what is held with its files has found.
type compared struct {
	difference *loader.Difference // nil: each byte is what the files give
	files      []manifest.File    // of the directory as it was read, with the digests that were wanted
}

// against has a child compare what is held with what its directory holds now, whatever
// the times of the files are. With digests, those of the files are computed, too. A
// file that is written meanwhile is an error that changed tells. Progress may be nil.
func (s *Server) against(ctx context.Context, h *cache.Hold, digests bool, progress func(loader.Progress)) (*compared, error) {
	e, c := h.Record(), s.configuration()
	limit := time.Duration(c.LoadTimeout)
	whole := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &tooSlow{limit})
	defer cancel()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	target, err := beside(ctx, s.checks, func(context.Context) (*resolve.Target, error) { return resolve.Plan(s.resolving(c), e.Key, e.Dir) })
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
	defer s.hashing.pause()()
	out := &compared{files: record(target.Dir.Record())}
	job := s.job(c, e.Device, target.Plan)
	var places []int // in out.files
	if digests {
		job.Digests, places = wanted(e.Dir, out.files, nil)
	}
	out.difference, err = s.o.Verify(ctx, s.o.Loader, job, h.Segments(), func(p loader.Progress) {
		if p.Digest != nil {
			f := &out.files[places[p.Digest.File]]
			f.SHA256, f.Hub = p.Digest.SHA256, p.Digest.Hub
		}
		if progress != nil {
			progress(p)
		}
	})
	if err != nil {
		return nil, s.blame(whole, err, time.Now())
	}
	return out, nil
}

// sameLayout reports whether two tables are alike, save for what a device has rounded
// their segments up to.
func sameLayout(plan, held *tensor.Table) bool {
	p, h := *plan, *held
	p.Segments = h.Segments
	x, err := p.Encode()
	if err != nil {
		return false
	}
	y, err := h.Encode()
	return err == nil && bytes.Equal(x, y)
}

// wanted are the files of a directory whose digests are wanted: those that a load
// hangs on and, of weights, that the plan reads; nil stands for a plan of all. Places
// says where in files each of them is.
func wanted(dir string, files []manifest.File, plan *layout.Plan) (list []layout.File, places []int) {
	read := make(map[string]bool)
	if plan != nil {
		for _, f := range plan.Files {
			read[f.Path] = true
		}
	}
	for i, f := range files {
		path := filepath.Join(dir, f.Name)
		if !f.Used || f.Stamp == (stamp.Stamp{}) || plan != nil && strings.HasSuffix(f.Name, ".safetensors") && !read[path] {
			continue
		}
		list = append(list, layout.File{Path: path, Stamp: f.Stamp})
		places = append(places, i)
	}
	return list, places
}
