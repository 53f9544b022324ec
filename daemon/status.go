// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/weights/index"
)

// status describes the instance for a client, all but the client's version.
func (s *Server) status() control.Status {
	entries := s.cache.Status()
	out := control.Status{
		Schema: control.Schema, Instance: s.o.Instance, State: "serving", PID: os.Getpid(), Since: s.since.UTC(),
		Version: control.Version{Daemon: s.o.Version}, Restart: s.restart(), Device: control.Device{Kind: s.o.Device, UUID: s.o.UUID},
		GPU: s.gpuStatus(), Roots: s.roots(), Problems: []string{}, Findings: []control.Problem{}, Entries: []control.Entry{}, Counts: s.ledger.counted(),
	}
	s.mu.Lock()
	if len(s.paths) > 0 {
		out.Socket = s.paths[0]
	}
	s.mu.Unlock()
	for _, e := range entries {
		out.Bytes += e.Bytes
		out.Entries = append(out.Entries, entry(e))
	}
	for _, p := range s.problems(&out, entries) {
		out.Problems = append(out.Problems, p.Text)
		out.Findings = append(out.Findings, p)
	}
	return out
}

// problems lists the current problems.
func (s *Server) problems(status *control.Status, entries []cache.Status) (list []control.Problem) {
	add := func(code control.ProblemCode, texts ...string) {
		for _, text := range texts {
			if text != "" {
				list = append(list, control.Problem{Code: code, Text: text})
			}
		}
	}
	if g := status.GPU; g != nil && g.Gone() {
		add(control.GPUUnusable, gpuProblem(g))
	} else {
		add(control.GPUHealthUnknown, gpuProblem(g))
	}
	add(control.LogNotRead, s.o.LogProblem())
	add(control.DeviceMissing, text(s.o.DeviceErr))
	add(control.ConfigBroken, text(s.configProblem()))
	add(control.ManifestNotWritten, text(s.manifest.problem()))
	for _, err := range s.claims.problems() {
		add(control.SocketWrong, text(err))
	}
	add(control.RootNotSearched, rootProblems(status.Roots)...)
	add(control.FileDamaged, damagedFiles(entries)...)
	for _, e := range entries {
		if e.NotKept != "" {
			add(control.EntryNotKept, fmt.Sprintf("%.12s would not outlive the daemon: %s", e.Key.ID(), e.NotKept))
		}
	}
	return list
}

// text is the text of an error, "" for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// roots lists the folders in which the daemon searches for models.
func (s *Server) roots() []control.Root {
	var list []control.Root
	for _, r := range s.o.Index.Roots() {
		if r.Added {
			continue // a single model directory that a request has named
		}
		list = append(list, control.Root{
			Path: r.Path, State: string(r.State), Reason: r.Reason, Polled: r.Polled,
			Folders: r.Dirs, Models: r.Models, Walked: r.Walked.UTC(), Seconds: r.Took.Seconds(),
		})
		if r.Walked.IsZero() {
			list[len(list)-1].Walked = time.Time{}
		}
	}
	return list
}

// rootProblems describes the roots that can't be searched completely.
func rootProblems(roots []control.Root) []string {
	var list []string
	for _, r := range roots {
		if r.State == string(index.Partial) || r.State == string(index.Hung) {
			list = append(list, fmt.Sprintf("root %s is not searched whole: %s; an engine whose process doesn't say its model is refused", r.Path, r.Reason))
		}
	}
	return list
}

func entry(e cache.Status) control.Entry {
	out := control.Entry{
		Key: e.Key.ID(), Model: e.Model, Sure: e.Sure, State: string(e.State), Loader: e.Loader, Reason: e.Reason, Bytes: e.Bytes,
		Tensors: e.Tensors, Pinned: e.Pinned, Engines: []control.Engine{}, Waiting: e.Waiting,
		Loaded: e.Loaded.UTC(), Used: e.Used.UTC(), LoadSeconds: e.Seconds, Fingerprint: e.Key,
	}
	if e.Loaded.IsZero() {
		out.Loaded = time.Time{}
	}
	for _, x := range e.Engines {
		out.Engines = append(out.Engines, control.Engine{PID: x.PID, Comm: x.Name, Since: x.Since.UTC()})
	}
	if e.State != cache.Loading {
		out.Files = filesOf(e.Files)
	}
	if e.State == cache.Loading {
		out.Progress = &control.Progress{Done: e.Progress.Done, Total: e.Progress.Total, Seconds: time.Since(e.Started).Seconds(), Waiting: e.Progress.Waiting}
	}
	return out
}

func filesOf(list []manifest.File) *control.Files {
	out := &control.Files{Damaged: []string{}}
	for _, f := range list {
		if !f.Used {
			continue
		}
		out.Count++
		if f.SHA256 != "" {
			out.Digests++
		}
		if f.Damaged() {
			out.Damaged = append(out.Damaged, f.Name)
		}
	}
	return out
}

// damagedFiles describes, each once, the files of entries whose sha256 isn't the one in
// their names.
func damagedFiles(entries []cache.Status) []string {
	var list []string
	for _, e := range entries {
		for _, f := range e.Files {
			if !f.Damaged() {
				continue
			}
			damage := loader.Damaged{Path: filepath.Join(e.Model, f.Name), SHA256: f.SHA256, Hub: f.Hub}
			if text := withHint(damage.Error(), loader.FetchAgain); !slices.Contains(list, text) {
				list = append(list, text)
			}
		}
	}
	return list
}

// tellStatus has runStatus update the status line. It doesn't block: a busy service
// manager may not read for a while.
func (s *Server) tellStatus() {
	select {
	case s.shown <- struct{}{}:
	default: // the update that is due includes this change
	}
}

// runStatus updates the status line after changes, until ctx is done.
func (s *Server) runStatus(ctx context.Context) {
	for {
		select {
		case <-s.shown:
			if s.o.Status != nil {
				s.o.Status(s.statusLine())
			}
		case <-ctx.Done():
			return
		}
	}
}

// statusLine summarizes the service for "systemctl status".
func (s *Server) statusLine() string {
	entries := s.cache.Status()
	var bytes int64
	engines := 0
	loading := ""
	models := 0
	for _, e := range entries {
		bytes += e.Bytes
		engines += len(e.Engines)
		if e.State == cache.Loading {
			loading = ", loading"
			if e.Progress.Total > 0 {
				loading += fmt.Sprintf(" %d %%", 100*e.Progress.Done/e.Progress.Total)
			}
			continue
		}
		models++
	}
	if len(entries) == 0 {
		return "empty"
	}
	return fmt.Sprintf("%s, %.1f GiB, %s attached%s", count(models, "model"), float64(bytes)/(1<<30), count(engines, "engine"), loading)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// gpuStatus is the result of the last GPU check for a client; nil before the first.
func (s *Server) gpuStatus() *device.GPU {
	h, at := s.gpu.health()
	if h == nil {
		return nil
	}
	out := *h
	out.Checked = at.UTC()
	if out.UUID == "" {
		out.UUID = s.o.UUID
	}
	return &out
}

// gpuProblem describes the GPU's problem, "" if none is known.
func gpuProblem(g *device.GPU) string {
	if g == nil || g.State == device.GPUOK {
		return ""
	}
	return fmt.Sprintf("GPU %s is %s: %s", g.UUID, g.State, g.Reason)
}
