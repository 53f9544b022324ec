// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
)

// seeDisk is the advice for a file that changed without a write.
const seeDisk = "fetch the model again, and see that the disk is sound"

// loadsAgain is the advice for files that were changed: nothing has to be done.
const loadsAgain = "the next request for it loads it again"

// verify compares entries with their files, one after the other.
func (s *Server) verify(ctx context.Context, v control.Verify, progress func(control.Progress)) ([]control.Verified, error) {
	select { // one verification at a time: each uses the whole bandwidth of the disk
	case s.verifying <- struct{}{}:
		defer func() { <-s.verifying }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	list, err := s.targets(ctx, v.Targets)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	var done, total int64
	for _, e := range list {
		total += e.Bytes
	}
	results := []control.Verified{}
	for _, e := range list {
		hold, err := s.cache.Hold(e.ID)
		if err != nil { // it has left meanwhile
			if len(v.Targets) > 0 {
				return results, &cache.NoEntry{ID: e.Key.ID()}
			}
			continue
		}
		results = append(results, s.verifyEntry(ctx, hold, func(p loader.Progress) {
			if p.Total > 0 {
				share := float64(p.Done) / float64(p.Total)
				progress(control.Progress{Done: done + int64(share*float64(e.Bytes)), Total: total, Seconds: time.Since(begin).Seconds()})
			}
		}))
		hold.Release()
		done += e.Bytes
		if ctx.Err() != nil {
			return results, context.Cause(ctx)
		}
	}
	return results, nil
}

// targets lists the entries to verify, each once; without names, all ready ones.
func (s *Server) targets(ctx context.Context, names []string) ([]cache.Status, error) {
	all := s.cache.Status()
	chosen := make(map[string]bool)
	for _, name := range names {
		fits, err := s.fits(ctx, all, name)
		if err != nil {
			return nil, err
		}
		ready := false
		for _, e := range all {
			if fits(e) && e.State == cache.Ready {
				chosen[e.ID], ready = true, true
			}
		}
		for _, e := range all {
			if fits(e) && e.State == cache.Loading && !ready {
				//diag entries KEY
				// A loader fills the entry now. Wait until the load has ended, and repeat the
				// command.
				return nil, &control.Error{Code: control.CodeInUse, Message: fmt.Sprintf("verify %.12s: it is being loaded", e.Key.ID()), Hint: "verify it when it is loaded"}
			}
		}
		if !ready {
			//diag entries MODEL
			// The instance has no entry of this model. `wcache status` lists the models that it
			// holds.
			return nil, &control.Error{Code: control.CodeNoKey, Message: fmt.Sprintf("find entry: no entry of model %q", name), Hint: "wcache status lists the entries"}
		}
	}
	var list []cache.Status
	for _, e := range all {
		if e.State == cache.Ready && (chosen[e.ID] || len(names) == 0) {
			list = append(list, e)
		}
	}
	return list, nil
}

// fits gives a test for the entries that a name means: the first digits of one key, or
// else a model.
func (s *Server) fits(ctx context.Context, all []cache.Status, name string) (func(cache.Status) bool, error) {
	keys := make(map[string]bool)
	for _, e := range all {
		if e.State != cache.Leaving && name != "" && strings.HasPrefix(e.Key.ID(), name) {
			keys[e.Key.ID()] = true
		}
	}
	switch {
	case len(keys) == 1:
		return func(e cache.Status) bool { return keys[e.Key.ID()] }, nil
	case len(keys) > 1:
		return nil, &control.Error{Code: control.CodeUsage, Message: fmt.Sprintf("more than one key begins with %q", name), Hint: "give more of its digits"}
	case strings.Trim(name, "0123456789abcdef") == "":
		return nil, &cache.NoEntry{ID: name}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkLimit, &hangs{name, checkLimit})
	defer cancel()
	choice, err := beside(ctx, s.checks, func(context.Context) (resolve.Choice, error) {
		path, _, err := weights.Locate(name, "", s.o.Env, s.configuration().Roots)
		if err != nil {
			return resolve.Choice{}, err
		}
		return resolve.Named(path)
	})
	if err != nil {
		return nil, err
	}
	return func(e cache.Status) bool { return e.Model == choice.Dir }, nil
}

// verifyEntry compares one entry with its files, and acts on the result: it retires an
// entry whose memory is wrong, and renews the record of one whose files were only touched.
func (s *Server) verifyEntry(ctx context.Context, h *cache.Hold, progress func(loader.Progress)) control.Verified {
	begin, e := time.Now(), h.Record()
	v := control.Verified{Key: e.Key.ID(), Model: e.Dir, Bytes: e.Bytes, Files: []control.VerifiedFile{}, Fingerprint: e.Key}
	touched, err := s.sameFiles(ctx, e)
	var now *compared
	if err == nil {
		now, err = s.loads.against(ctx, h, true, progress)
	}
	v.Seconds = time.Since(begin).Seconds()
	if err != nil {
		v.State, v.Message, v.Hint = control.StateFailed, err.Error(), s.hint(err)
		if filesChanged(err) {
			v.State, v.Hint = control.StateChanged, loadsAgain
		}
		return v
	}
	judge(&v, e, now)
	switch {
	case v.State == control.StateDiffers && touched != nil:
		//diag files REASON
		// The first part of the message says how the file was touched. Its contents have changed
		// too, for example because cp(1) with `-a` replaced it. The next request loads the model
		// again.
		v.State, v.Message, v.Hint, v.Dropped = control.StateChanged, touched.Error()+", and its contents differ", loadsAgain, false
	case v.State == control.StateEqual && touched != nil:
		h.Renew(now.files) // from now on requests find the files unchanged
	case v.State == control.StateEqual:
		s.hashing.shareDigests([]manifest.Entry{{Files: now.files}})
	case v.Dropped:
		h.Retire(v.Message)
		//diag serving
		// `wcache verify` found other bytes in memory than in the files, and the daemon no longer
		// gives the entry to engines. Restart the engines that have mapped it, and have the memory
		// or the GPU tested.
		s.log.Error("memory differs from its files", "key", v.Key[:12], "model", v.Model, "difference", v.Message)
	}
	return v
}

// sameFiles looks at the files' times as a request does. The error is that they have
// certainly changed; touched is a change of which only the contents tell whether it is
// one.
func (s *Server) sameFiles(ctx context.Context, e manifest.Entry) (touched *stamp.Changed, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkLimit, &hangs{e.Dir, checkLimit})
	defer cancel()
	_, err = beside(ctx, s.checks, func(context.Context) (struct{}, error) { return struct{}{}, recordOf(e).Stale() })
	if errors.As(err, &touched) && touched.MayBeEqual {
		return touched, nil
	}
	return nil, err
}

// judge fills in the result of a comparison: of each file, and of the memory.
func judge(v *control.Verified, e manifest.Entry, now *compared) {
	recorded := make(map[string]string)
	for _, f := range e.Files {
		recorded[f.Name] = f.SHA256
	}
	v.State = control.StateEqual
	var faults []string
	hint := loader.FetchAgain
	for _, f := range now.files {
		if f.SHA256 == "" {
			continue
		}
		x := control.VerifiedFile{Name: f.Name, State: control.StateEqual, SHA256: f.SHA256, Recorded: recorded[f.Name], Hub: f.Hub}
		path := filepath.Join(e.Dir, f.Name)
		var wrong string
		switch {
		case x.Recorded != "" && x.Recorded != x.SHA256:
			x.State = control.StateDiffers
			hint = seeDisk
			//diag files FILE DIGEST DIGEST
			// The contents of the file changed without a write, so the disk, its cable or the
			// memory fails. Have them tested, and fetch the model again. The weights in memory are
			// those of the intact file, and stay.
			wrong = fmt.Sprintf("the sha256 of %s is %s and was %s before, though nothing has written to it: a disk or a cable fails", path, x.SHA256, x.Recorded)
		case f.Damaged():
			x.State = control.StateDamaged
			wrong = (&loader.Damaged{Path: path, SHA256: f.SHA256, Hub: f.Hub}).Error()
		case x.Recorded == "":
			x.State = control.StateNew
		}
		if wrong != "" {
			faults = append(faults, wrong)
		}
		v.Files = append(v.Files, x)
	}
	if len(faults) > 0 {
		v.State, v.Message, v.Hint = control.StateDiffers, strings.Join(faults, "; "), hint
	}
	if now.difference == nil {
		return
	}
	d := control.Difference(*now.difference)
	v.Difference = &d
	if v.State != control.StateEqual { // a file is wrong, so the memory is trusted
		return
	}
	v.State, v.Dropped = control.StateDiffers, true
	//diag entries NUMBER NAME BYTE BYTE NUMBER NUMBER
	// The memory of the entry has changed since the load and its files have not; failing memory or
	// another program with access to it can cause that. The daemon no longer gives the entry to
	// engines. Restart the engines that have mapped it, and have the memory or the GPU tested.
	v.Message = fmt.Sprintf("memory differs from its files: byte %d of tensor %q is %#02x, the files give %#02x; %d bytes of %d tensors differ", d.Offset, d.Tensor, d.Memory, d.File, d.Bytes, d.Tensors)
	v.Hint = "it is loaded again for the next engine; those that have mapped it have to be restarted"
}
