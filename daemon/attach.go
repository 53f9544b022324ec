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

// attachedName is the name in the store of the file that says which engine was given
// which entry.
const attachedName = "a-engines"

// attachments are which engine was given which entry, in the cache and beyond a crash.
// Safe for concurrent use.
type attachments struct {
	log   *slog.Logger
	cache *cache.Cache
	file  *attached.File // of which the store has a copy; replaced before the first request only
	ends  *peer.Ends
}

// newAttachments makes an empty file. The caller closes what it is given.
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

// engine is a process as the cache knows it.
func engine(p peer.Process) cache.Engine {
	start, _ := peer.StartTime(p.PID) // 0 if it has ended, which is noticed elsewhere
	return cache.Engine{PID: p.PID, Name: p.Name(), Start: start, Since: time.Now()}
}

// attach counts an engine as one that may map what is held, before it is told anything:
// from then on only the end of its process frees the entry, whatever becomes of this one.
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

// detach ends what a process is attached to.
func (a *attachments) detach(pid int) {
	a.cache.Detach(pid)
	if err := a.file.Remove(func(r attached.Row) bool { return r.PID == pid }); err != nil {
		//diag restart
		// The file that says which engine has which entry could not be written, for the logged
		// reason. The daemon recognizes after its next start that the process has ended; nothing
		// has to be done.
		a.log.Error("engine is not forgotten", "pid", pid, "err", err) // the next process sees that it has ended
	}
}

// whoHas gives the engines of a recovered entry: those of the file, and those that the
// manifest has of them, if they are the same processes still.
func (a *attachments) whoHas(e manifest.Entry) []manifest.Engine {
	list := e.Engines
	for _, r := range a.file.Rows() {
		if r.Entry == e.ID {
			list = append(list, manifest.Engine(r.Process))
		}
	}
	return alive(list)
}

// forgetEnded removes the rows of processes that have ended while no daemon was there.
func (a *attachments) forgetEnded() {
	err := a.file.Remove(func(r attached.Row) bool { return len(alive([]manifest.Engine{manifest.Engine(r.Process)})) == 0 })
	if err != nil {
		//diag restart
		// The file that says which engine has which entry could not be written at the start, for
		// the logged reason. The daemon knows all the same which processes have ended; nothing has
		// to be done.
		a.log.Error("engines are not forgotten", "err", err)
	}
}

// alive gives those of recorded engines that are the same processes still.
func alive(list []manifest.Engine) []manifest.Engine {
	var out []manifest.Engine
	for _, x := range list {
		if start, err := peer.StartTime(x.PID); err == nil && start == x.Start {
			out = append(out, x)
		}
	}
	return out
}

// watch begins to wait for the end of an engine that is attached already.
func (a *attachments) watch(x manifest.Engine) {
	// A pid can have come to mean another process since alive looked, but not any more
	// once it is watched.
	err := a.ends.Watch(x.PID)
	if err == nil && len(alive([]manifest.Engine{x})) == 0 {
		err = errors.New("it is another process")
	}
	if err != nil {
		a.detach(x.PID)
	}
}
