// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"log/slog"
	"time"

	"github.com/wcache/wcache/attached"
	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/manifest"
)

// attachedName names, in the store, the file that says which engine was given which
// entry.
const attachedName = "a-engines"

// attachments records which engine was given which entry, in the cache and in a file
// that outlives a crash. Safe for concurrent use.
type attachments struct {
	log   *slog.Logger
	cache *cache.Cache
	file  *attached.File // the store has a copy of its descriptor; replaced before the first request only
	ends  *peer.Ends
}

// newAttachments makes attachments with an empty file. The caller closes them.
func newAttachments(log *slog.Logger, c *cache.Cache) (*attachments, error) {
	file, err := attached.New()
	if err != nil {
		return nil, err
	}
	a := &attachments{log: log, cache: c, file: file}
	a.ends = peer.NewEnds(func(pid int) {
		a.detach(pid)
		log.Debug("engine ended", "pid", pid)
	})
	return a, nil
}

func (a *attachments) close() error {
	a.ends.Close()
	return a.file.Close()
}

// engine describes a process for the cache.
func engine(p peer.Process) cache.Engine {
	start, _ := peer.StartTime(p.PID) // 0 if it has ended, which attach notices
	return cache.Engine{PID: p.PID, Name: p.Name(), Start: start, Since: time.Now()}
}

// attach records that an engine may map the entry. It is called before the engine gets
// its answer: from then on only the end of the engine's process frees the entry, even if
// this process crashes.
func (a *attachments) attach(hold *cache.Hold, engine cache.Engine) error {
	if err := a.file.Add(attached.Row{Entry: hold.ID(), Process: attached.Process(engine)}); err != nil {
		return err
	}
	hold.Attach(engine)
	if err := a.ends.Watch(engine.PID); err != nil {
		a.detach(engine.PID)
		return err
	}
	return nil
}

// detach ends all attachments of a process.
func (a *attachments) detach(pid int) {
	a.cache.Detach(pid)
	if err := a.file.Remove(func(r attached.Row) bool { return r.PID == pid }); err != nil {
		//diag restart
		// The file that says which engine has which entry could not be written, for the logged
		// reason. The daemon recognizes after its next start that the process has ended; nothing
		// has to be done.
		a.log.Error("engine is not forgotten", "pid", pid, "err", err) // the next daemon sees that the engine has ended
	}
}

// whoHas gives the engines of a recovered entry, from the file and from the manifest,
// without those that have ended.
func (a *attachments) whoHas(e manifest.Entry) []manifest.Engine {
	list := e.Engines
	for _, r := range a.file.Rows() {
		if r.Entry == e.ID {
			list = append(list, manifest.Engine(r.Process))
		}
	}
	return alive(list)
}

// forgetEnded removes the rows of processes that ended while no daemon ran.
func (a *attachments) forgetEnded() {
	err := a.file.Remove(func(r attached.Row) bool { return len(alive([]manifest.Engine{manifest.Engine(r.Process)})) == 0 })
	if err != nil {
		//diag restart
		// The file that says which engine has which entry could not be written at the start, for
		// the logged reason. The daemon still knows which processes have ended; nothing has to be
		// done.
		a.log.Error("engines are not forgotten", "err", err)
	}
}

// alive gives the recorded engines that still run, told by pid and start time.
func alive(list []manifest.Engine) []manifest.Engine {
	var out []manifest.Engine
	for _, x := range list {
		if start, err := peer.StartTime(x.PID); err == nil && start == x.Start {
			out = append(out, x)
		}
	}
	return out
}

// watch begins to wait for the end of an engine that is already attached.
func (a *attachments) watch(x manifest.Engine) {
	// Since alive looked, the kernel may have given the pid to another process. From Watch
	// on it can't, so the second look is certain.
	err := a.ends.Watch(x.PID)
	if err == nil && len(alive([]manifest.Engine{x})) == 0 {
		err = errors.New("it is another process")
	}
	if err != nil {
		a.detach(x.PID)
	}
}
