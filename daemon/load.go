// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
)

// Mismatch is the refusal of a key because of one that is held, in the protocol's
// own words: the names of the fields that differ.
type Mismatch struct{ Fields []string }

func (m *Mismatch) Error() string { return fmt.Sprintf("compare keys: %v differ", m.Fields) }

// load is what the cache calls for a key that it doesn't hold.
func (s *Server) load(ctx context.Context, key fingerprint.Key, ticket *cache.Ticket) (*cache.Contents, error) {
	s.mu.Lock()
	c, broken := s.config, s.configErr
	s.mu.Unlock()
	if broken != nil {
		return nil, fmt.Errorf("nothing is loaded with a broken configuration: %w", broken)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.LoadTimeout))
	defer cancel()
	target, err := resolve.Resolve(ctx, resolve.Options{Index: s.o.Index, Env: s.o.Env, Pins: c.Pins, Assume: c.Assume}, key)
	if err != nil {
		return nil, err
	}
	s.saveIndex()
	if err := s.allowed(c, key, target); err != nil {
		return nil, err
	}
	files, err := record(target)
	if err != nil {
		return nil, err
	}
	for _, note := range target.Plan.Notes {
		s.log.Info("plan", "key", key.ID()[:12], "note", note)
	}
	bytes := target.Plan.Table.Segments[0]
	if err := ticket.Reserve(bytes); err != nil {
		return nil, err
	}
	begin := time.Now()
	result, err := s.run(ctx, c, target, ticket)
	if err != nil {
		return nil, err
	}
	took := time.Since(begin)
	s.log.Info("loaded", "key", key.ID()[:12], "model", target.Dir.Path, "loader", target.Loader, "why", target.Reason,
		"bytes", bytes, "seconds", took.Seconds())
	return &cache.Contents{
		Table: result.Table, TableFD: result.TableFD, Segments: result.Segments,
		Record: manifest.Entry{
			Dir: target.Dir.Path, Revision: key.Str("revision"), Device: s.o.Device, Loader: target.Loader, Reason: target.Reason,
			Seconds: took.Seconds(), Pinned: target.Pinned, Files: files,
		},
	}, nil
}

// run starts the loader; when the device is full, once more after the entries
// that nobody uses have made room.
func (s *Server) run(ctx context.Context, c config.Config, target *resolve.Target, ticket *cache.Ticket) (*loader.Result, error) {
	job := loader.Job{Device: s.o.Device, Plan: target.Plan, Workers: c.Workers}
	progress := func(p loader.Progress) {
		ticket.Progress(cache.Progress{Model: target.Dir.Path, Allocated: p.Allocated, Done: p.Done, Total: p.Total})
		s.tellStatus()
	}
	progress(loader.Progress{Total: target.Plan.Table.Bytes()})
	result, err := loader.Run(ctx, s.o.Loader, job, progress)
	var full *loader.Error
	if errors.As(err, &full) && full.Kind == loader.KindNoMemory && ticket.Free(target.Plan.Table.Segments[0]) > 0 {
		progress(loader.Progress{Total: target.Plan.Table.Bytes()})
		result, err = loader.Run(ctx, s.o.Loader, job, progress)
	}
	return result, err
}

// allowed applies the policy. A pinned instance loads only what is pinned, and
// one key of each directory: another is told the fields in which it differs.
func (s *Server) allowed(c config.Config, key fingerprint.Key, target *resolve.Target) error {
	if c.Policy != config.PolicyPinned {
		return nil
	}
	dir := target.Dir.Path
	if !target.Pinned {
		dir = ""
	}
	if held, ok := s.cache.Nearest(key, dir); ok {
		return &Mismatch{Fields: fingerprint.Compare(key, held)}
	}
	if !target.Pinned {
		return &resolve.Refusal{
			Field:  "checkpoint",
			Reason: fmt.Sprintf("policy is \"pinned\" and %s is not pinned", target.Dir.Path),
			Hint:   fmt.Sprintf("set pins = [%q] in wcache.toml", target.Dir.Path),
		}
	}
	return nil
}

// record notes the files that a target depends on, as they were when the plan
// was made, and those that say how to read them.
func record(target *resolve.Target) ([]manifest.File, error) {
	var files []manifest.File
	for _, f := range target.Plan.Files {
		files = append(files, manifest.File{Path: f.Path, Size: f.Size, MTime: time.Unix(0, f.MTime).UTC(), Inode: f.Inode})
	}
	for _, name := range []string{"config.json", "model.safetensors.index.json", "consolidated.safetensors.index.json"} {
		path := filepath.Join(target.Dir.Path, name)
		st, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("record file: %w", err)
		}
		files = append(files, manifest.File{Path: path, Size: st.Size(), MTime: st.ModTime().UTC(), Inode: st.Sys().(*syscall.Stat_t).Ino})
	}
	return files, nil
}
