// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"github.com/wcache/wcache/attached"
	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/manifest"
)

// attachedName is the name in the store of the file that says which engine was given
// which entry.
const attachedName = "a-engines"

// attach counts an engine as one that may map what is held, before it is told anything:
// from then on only the end of its process frees the entry, whatever becomes of this one.
func (s *Server) attach(hold *cache.Hold, engine cache.Engine) error {
	if err := s.attached.Add(attached.Row{Entry: hold.ID(), Process: attached.Process(engine)}); err != nil {
		return err
	}
	hold.Attach(engine)
	if err := s.engines.watch(engine.PID); err != nil {
		s.detach(engine.PID)
		return err
	}
	return nil
}

// detach ends what a process is attached to.
func (s *Server) detach(pid int) {
	s.cache.Detach(pid)
	if err := s.attached.Remove(func(r attached.Row) bool { return r.PID == pid }); err != nil {
		s.log.Error("engine is not forgotten", "pid", pid, "err", err) // the next process sees that it has ended
	}
}

// recoverAttached takes over the file of the process before, or has the store keep a
// new one.
func (s *Server) recoverAttached(shelf map[string]*fd.FD) {
	if f := shelf[attachedName]; f != nil {
		delete(shelf, attachedName)
		old, err := attached.Open(f)
		if err == nil {
			_ = s.attached.Close() // it is empty
			s.attached = old
			return
		}
		s.drop(attachedName, f, err.Error())
	}
	if s.o.Store == nil {
		return
	}
	err := s.o.Store.Room(1)
	if err == nil {
		err = s.o.Store.Put(attachedName, s.attached.FD())
	}
	if err != nil {
		s.log.Error("engines are not remembered beyond a crash", "err", err)
	}
}

// whoHas gives the engines of a recovered entry: those of the file, and those that the
// manifest has of them, if they are the same processes still.
func (s *Server) whoHas(e manifest.Entry) []manifest.Engine {
	list := e.Engines
	for _, r := range s.attached.Rows() {
		if r.Entry == e.ID {
			list = append(list, manifest.Engine(r.Process))
		}
	}
	return s.alive(list)
}

// forgetEnded removes the rows of processes that have ended while no daemon was there.
func (s *Server) forgetEnded() {
	err := s.attached.Remove(func(r attached.Row) bool { return len(s.alive([]manifest.Engine{manifest.Engine(r.Process)})) == 0 })
	if err != nil {
		s.log.Error("engines are not forgotten", "err", err)
	}
}
