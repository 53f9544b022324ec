// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/tensor"
)

// Kept is a descriptor that an earlier process left in the store.
type Kept struct {
	Name string
	FD   *fd.FD
}

// watchPrefix begins the names of engines' connections in the store.
const watchPrefix = "w-"

// Recover takes over what an earlier process held: the entries whose tables say by
// their labels which descriptors they have, where all of these are there, and the
// connections of engines that watch. The manifest's file adds what came after the
// load, and says of tables without a label, as manifests of schema 1 go with, what
// they are. What doesn't fit is dropped, with the reason in the log: it is loaded
// again when somebody asks. The server owns all descriptors from here on. Call it
// once, before Serve.
func (s *Server) Recover(kept []Kept) {
	begin := time.Now()
	m, err := manifest.Load(s.o.Manifest)
	if err != nil {
		s.log.Error("manifest is not used", "err", err)
		m = new(manifest.Manifest)
	}
	for _, fault := range m.Faults {
		s.log.Error("entry of the manifest is not used", "err", fault)
	}
	shelf := s.shelve(kept)
	s.recoverAttached(shelf)
	entries := s.labelled(shelf, m.Entries)
	n := 0
	for _, e := range entries {
		if err := s.recoverEntry(e, shelf); err != nil {
			s.log.Warn("entry is dropped", "key", e.Key.ID()[:12], "model", e.Dir, "reason", err)
			s.lost = append(s.lost, e)
			continue
		}
		n++
	}
	for name, f := range shelf {
		if strings.HasPrefix(name, watchPrefix) {
			s.recoverWatch(name, f)
			continue
		}
		s.drop(name, f, "no entry and no connection goes with it")
	}
	if n > 0 {
		if m.Uncorrected != nil { // without entries a count says nothing, and could be another GPU's
			s.gpu.outlived(*m.Uncorrected)
		}
		s.gpu.look(s.ctx, 0) // nobody has, for as long as no process was there
	}
	s.forgetEnded()
	s.pin()
	if len(kept) > 0 || len(entries) > 0 {
		s.log.Info("recovered", "entries", n, "of", len(entries), "descriptors", len(kept), "seconds", time.Since(begin).Seconds())
	}
}

// labelled gives the records of all entries that are known: those of labels on the
// shelf, with what the manifest adds to them, then the manifest's others.
func (s *Server) labelled(shelf map[string]*fd.FD, rows []manifest.Entry) []manifest.Entry {
	byTable := make(map[string]manifest.Entry)
	for _, row := range rows {
		byTable[row.Table] = row
	}
	var list []manifest.Entry
	for _, name := range slices.Sorted(maps.Keys(shelf)) {
		if !strings.HasPrefix(name, tablePrefix) {
			continue
		}
		e, _, err := readTable(shelf[name])
		if errors.Is(err, manifest.ErrNoLabel) {
			continue // it may be in the manifest
		}
		if err == nil && e.Table != name {
			err = fmt.Errorf("its label is that of %q", e.Table)
		}
		if err != nil {
			s.log.Warn("label is not used", "name", name, "err", err)
			continue
		}
		if row, ok := byTable[name]; ok && row.ID == e.ID {
			e.Used, e.Engines, e.Files, e.Pinned = row.Used, row.Engines, row.Files, row.Pinned
		}
		delete(byTable, name)
		list = append(list, e)
	}
	for _, row := range rows {
		if _, left := byTable[row.Table]; left {
			list = append(list, row)
		}
	}
	return list
}

// tablePrefix begins the names of tables in the store.
const tablePrefix = "t-"

// readTable reads a table's file: its label and the encoded table.
func readTable(f *fd.FD) (manifest.Entry, []byte, error) {
	b, err := f.ReadSealed(manifest.MaxLabel + 1 + tensor.MaxEncoded)
	if err != nil {
		return manifest.Entry{}, nil, err
	}
	e, table, err := manifest.DecodeLabel(b)
	if errors.Is(err, manifest.ErrNoLabel) {
		return manifest.Entry{}, b, err
	}
	return e, table, err
}

// shelve sorts descriptors by name. Of those that have one name in common none is
// used: one could be of an earlier load, with other weights than the files have now.
func (s *Server) shelve(kept []Kept) map[string]*fd.FD {
	count := make(map[string]int)
	for _, k := range kept {
		count[k.Name]++
	}
	shelf := make(map[string]*fd.FD)
	for _, k := range kept {
		if count[k.Name] > 1 {
			s.drop(k.Name, k.FD, "another descriptor has this name")
			continue
		}
		shelf[k.Name] = k.FD
	}
	return shelf
}

// recoverEntry takes the descriptors of an entry off the shelf and has the cache
// adopt it.
func (s *Server) recoverEntry(e manifest.Entry, shelf map[string]*fd.FD) error {
	take := func(name string) *fd.FD {
		f := shelf[name]
		delete(shelf, name)
		return f
	}
	c := &cache.Contents{TableFD: take(e.Table)}
	missing := c.TableFD == nil
	for _, seg := range e.Segments {
		f := take(seg.Name)
		missing = missing || f == nil
		c.Segments = append(c.Segments, device.Segment{FD: f, Bytes: seg.Bytes})
	}
	err := errors.New("its descriptors are gone: the service was stopped, or the machine was started again")
	if !missing {
		c.Record = e
		c.Table, err = s.check(e, c)
	}
	if err != nil {
		for i, f := range append([]*fd.FD{c.TableFD}, fds(c.Segments)...) {
			if f != nil {
				s.drop(names(e)[i], f, "its entry is dropped")
			}
		}
		return err
	}
	c.Record.Engines = s.whoHas(e)
	if err := s.cache.Adopt(c); err != nil {
		for _, name := range names(e) {
			s.forget(name)
		}
		return err
	}
	for _, x := range c.Record.Engines {
		// A pid can have come to mean another process since alive looked, but not
		// any more once it is watched.
		err := s.engines.watch(x.PID)
		if err == nil && len(s.alive([]manifest.Engine{x})) == 0 {
			err = errors.New("it is another process")
		}
		if err != nil {
			s.detach(x.PID)
		}
	}
	return nil
}

// names are those of an entry's descriptors: of its table, then of its segments.
func names(e manifest.Entry) []string {
	list := []string{e.Table}
	for _, seg := range e.Segments {
		list = append(list, seg.Name)
	}
	return list
}

// check compares an entry's descriptors with its record.
func (s *Server) check(e manifest.Entry, c *cache.Contents) (*tensor.Table, error) {
	if e.Device != s.device(s.configuration()) {
		return nil, fmt.Errorf("it was made for the device %q", e.Device)
	}
	_, b, err := readTable(c.TableFD)
	if err != nil && !errors.Is(err, manifest.ErrNoLabel) {
		return nil, err
	}
	t, err := tensor.Decode(b)
	if err != nil {
		return nil, err
	}
	if len(t.Segments) != len(e.Segments) || len(t.Tensors) != e.Tensors || t.Bytes() != e.Bytes {
		return nil, errors.New("its table is another one's")
	}
	for i, seg := range c.Segments {
		if t.Segments[i] != seg.Bytes {
			return nil, fmt.Errorf("segment %d has %d bytes in the table and %d in the manifest", i, t.Segments[i], seg.Bytes)
		}
		err := s.o.CheckSegment(seg)
		if err == nil {
			err = seg.Gone()
		}
		if err == nil {
			err = sameFile(seg.FD, e.Segments[i].File)
		}
		if err != nil {
			return nil, fmt.Errorf("segment %d: %w", i, err)
		}
	}
	return t, nil
}

// sameFile compares a descriptor with what was noted of the one that was kept.
func sameFile(f *fd.FD, kept string) error {
	file, err := f.File()
	if err == nil && file != kept {
		err = fmt.Errorf("it is the file %q, and %q was kept", file, kept)
	}
	return err
}

// alive gives those of recorded engines that are the same processes still.
func (s *Server) alive(list []manifest.Engine) []manifest.Engine {
	var out []manifest.Engine
	for _, x := range list {
		if start, err := startTime(x.PID); err == nil && start == x.Start {
			out = append(out, x)
		}
	}
	return out
}

// recoverWatch goes on with an engine's watch, unless the descriptor is no
// connection of this user's.
func (s *Server) recoverWatch(name string, f *fd.FD) {
	conn, err := watched(f)
	if err != nil {
		s.drop(name, f, err.Error())
		return
	}
	_ = f.Close() // conn has a descriptor of its own
	if !s.crowd.watches.take() {
		s.log.Warn("watch is dropped", "name", name, "reason", s.crowd.watches.full())
		_ = conn.Close()
		s.forget(name)
		return
	}
	s.crowd.kept.add()
	s.crowd.kept.arrived()
	s.crowd.open.Add(1)
	s.conns.Go(func() {
		s.untilEnd(s.ctx, conn, name)
		_ = conn.Close()
		s.crowd.watches.leave()
		s.crowd.open.Add(-1)
	})
}

// watched makes a connection of a descriptor, which stays the caller's.
func watched(f *fd.FD) (*net.UnixConn, error) {
	dup, err := f.Dup()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(dup.Disown()), "watch")
	c, err := net.FileConn(file)
	err = errors.Join(err, file.Close())
	if err != nil {
		return nil, fmt.Errorf("it is no connection: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("it is no connection of an engine"), c.Close())
	}
	p, err := peerOf(conn)
	if err == nil && p.uid != os.Getuid() {
		err = fmt.Errorf("it is a connection of uid %d", p.uid)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (s *Server) drop(name string, f *fd.FD, reason string) {
	s.log.Warn("descriptor is dropped", "name", name, "reason", reason)
	s.forget(name)
	_ = f.Close() // nothing was written to it
}

// forget takes a name out of the store.
func (s *Server) forget(name string) {
	if s.o.Store == nil {
		return
	}
	if err := s.o.Store.Remove(name); err != nil {
		s.log.Warn("descriptor stays in the store", "name", name, "err", err)
	}
}

// keepWatch puts a connection into the store, under a name that no other has. It is in
// the store unless the name is "".
func (s *Server) keepWatch(conn *net.UnixConn, pid int) (name string, err error) {
	if s.o.Store == nil {
		return "", nil
	}
	share := &s.crowd.kept
	need := share.add()
	defer func() {
		if share.arrived(); err != nil {
			share.gone()
			name = ""
		}
	}()
	if err := s.o.Store.Room(need); err != nil {
		return "", err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", fmt.Errorf("keep connection: %w", err)
	}
	var f *fd.FD
	var dupErr error
	if err := raw.Control(func(n uintptr) {
		var d int
		if d, dupErr = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
			f, dupErr = fd.New(d)
		}
	}); err != nil || dupErr != nil {
		return "", fmt.Errorf("keep connection: %w", errors.Join(err, dupErr))
	}
	name = fmt.Sprintf("%s%d-%x", watchPrefix, pid, time.Now().UnixNano())
	return name, errors.Join(s.o.Store.Put(name, f), f.Close())
}

// forgetWatch takes a watch out of the store.
func (s *Server) forgetWatch(name string) {
	s.forget(name)
	s.crowd.kept.gone()
}

func fds(list []device.Segment) []*fd.FD {
	var out []*fd.FD
	for _, s := range list {
		out = append(out, s.FD)
	}
	return out
}
