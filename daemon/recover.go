// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/attached"
	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/tensor"
)

// Kept is a descriptor that an earlier process put into the store.
type Kept struct {
	Name string
	FD   *fd.FD
}

// Recover takes over what an earlier process held: the entries, and the connections of
// engines that watch. The label of a table names the descriptors of its entry, which must
// all be there. The manifest adds what has changed since the load, and describes tables
// without a label, from the time of schema 1. Recover drops what doesn't fit and logs the
// reason; the daemon loads it again on request. The server owns all descriptors from here
// on. Call it once, before Serve.
func (s *Server) Recover(kept []Kept) {
	begin := time.Now()
	m, err := inTime(s.o.Manifest, func() (*manifest.Manifest, error) { return manifest.Load(s.o.Manifest) })
	if err != nil {
		//diag restart
		// The daemon could not read the record of its entries, for the logged reason, such as that a
		// newer wcache has written it. It renames the file, with the ending .unused. Entries whose
		// descriptors say what they are stay; the daemon loads the rest again on request.
		s.log.Error("manifest is not used", "err", err, "kept", s.setAside())
		m = new(manifest.Manifest)
	}
	for _, fault := range m.Faults {
		//diag restart
		// One row of the record is damaged, and the daemon ignores it. It still serves the entry if
		// its descriptors say what they are; nothing has to be done.
		s.log.Error("entry of the manifest is not used", "err", fault)
	}
	shelf := s.shelve(kept)
	s.recoverAttached(shelf)
	entries := s.labelled(shelf, m.Entries)
	n := 0
	for _, e := range entries {
		if err := s.recoverEntry(e, shelf); err != nil {
			//diag restart
			// The descriptors of the entry do not fit its record, for the logged reason. The daemon
			// loads the model again when an engine asks.
			s.log.Warn("entry is dropped", "key", e.Key.ID()[:12], "model", e.Dir, "reason", err)
			s.lost = append(s.lost, e)
			continue
		}
		n++
	}
	for name, f := range shelf {
		if strings.HasPrefix(name, watchPrefix) {
			s.watches.recover(name, f)
			continue
		}
		s.store.drop(name, f, "no entry and no connection goes with it")
	}
	if n > 0 {
		if m.Uncorrected != nil { // without entries the count has no use, and may be of another GPU
			s.gpu.outlived(*m.Uncorrected)
		}
		s.gpu.look(s.ctx, 0) // nothing has checked the GPU while no daemon ran
	}
	s.attachments.forgetEnded()
	s.pin()
	if len(kept) > 0 || len(entries) > 0 {
		s.log.Info("recovered", "entries", n, "of", len(entries), "descriptors", len(kept), "seconds", time.Since(begin).Seconds())
	}
}

// setAside renames a manifest that can't be read, before a new one replaces it, and gives
// the new path; "" if that failed.
func (s *Server) setAside() string {
	path := s.o.Manifest + ".unused"
	_, err := inTime(s.o.Manifest, func() (struct{}, error) { return struct{}{}, os.Rename(s.o.Manifest, path) })
	if err != nil { // why it can't be read is in the log
		return ""
	}
	return path
}

// labelled gives the records of all known entries: first those with a label on the shelf,
// completed from the manifest, then the others of the manifest.
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
			continue // the manifest may have it
		}
		if err == nil && e.Table != name {
			err = fmt.Errorf("its label belongs to %q", e.Table)
		}
		if err != nil {
			//diag restart
			// The descriptor of a table does not say what it is. The daemon finds the entry by the
			// record, or drops it and loads it again when an engine asks; nothing has to be done.
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

// readTable reads a table's file: its label and the encoded table. With
// [manifest.ErrNoLabel] the file is the encoded table alone.
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

// shelve maps descriptors by name. It drops all that share a name: one of them could be of
// an earlier load, with other weights than the files have now.
func (s *Server) shelve(kept []Kept) map[string]*fd.FD {
	count := make(map[string]int)
	for _, k := range kept {
		count[k.Name]++
	}
	shelf := make(map[string]*fd.FD)
	for _, k := range kept {
		if count[k.Name] > 1 {
			s.store.drop(k.Name, k.FD, "another descriptor has this name")
			continue
		}
		shelf[k.Name] = k.FD
	}
	return shelf
}

// recoverAttached takes over the earlier process's file of attachments, or puts a new one
// into the store.
func (s *Server) recoverAttached(shelf map[string]*fd.FD) {
	if f := shelf[attachedName]; f != nil {
		delete(shelf, attachedName)
		old, err := attached.Open(f)
		if err == nil {
			_ = s.attachments.file.Close() // it is empty
			s.attachments.file = old
			return
		}
		s.store.drop(attachedName, f, err.Error())
	}
	if err := s.store.put(attachedName, s.attachments.file.FD()); err != nil {
		//diag restart
		// The service manager did not take the file that says which engine has which entry, for the
		// logged reason. After a crash, the daemon could evict an entry while an engine maps it;
		// restart the service to try again.
		s.log.Error("engines are not remembered beyond a crash", "err", err)
	}
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
	for _, p := range e.Pieces {
		f := take(p.Name)
		missing = missing || f == nil
		c.Segment.Pieces = append(c.Segment.Pieces, f)
		c.Segment.Bytes += p.Bytes
	}
	//diag restart
	// This is the usual reason of a dropped entry: a stop of the service or of the machine frees the
	// weights. To keep weights, restart the service instead of stopping it.
	err := errors.New("its descriptors are gone: the service was stopped, or the machine was started again")
	if !missing {
		c.Record = e
		c.Table, err = s.check(e, c)
	}
	if err != nil {
		for i, f := range append([]*fd.FD{c.TableFD}, c.Segment.Pieces...) {
			if f != nil {
				s.store.drop(names(e)[i], f, "its entry is dropped")
			}
		}
		return err
	}
	c.Record.Engines = s.attachments.whoHas(e)
	if err := s.cache.Adopt(c); err != nil {
		for _, name := range names(e) {
			s.store.forget(name)
		}
		return err
	}
	for _, x := range c.Record.Engines {
		s.attachments.watch(x)
	}
	return nil
}

// names lists the names of an entry's descriptors: its table, then its memory.
func names(e manifest.Entry) []string {
	list := []string{e.Table}
	for _, p := range e.Pieces {
		list = append(list, p.Name)
	}
	return list
}

// check compares an entry's descriptors with its record.
func (s *Server) check(e manifest.Entry, c *cache.Contents) (*tensor.Table, error) {
	if e.Device != s.device(s.configuration()) {
		//diag restart NAME
		// This is a reason of a dropped entry: the instance now stands for another GPU than before.
		// Name instances by uuid if the numbers of GPUs change.
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
	switch {
	case len(t.Tensors) != e.Tensors || t.Bytes() != e.Bytes:
		return nil, errors.New("its table belongs to another entry")
	case t.Segment != c.Segment.Bytes:
		return nil, fmt.Errorf("its memory has %d bytes in the table and %d in its record", t.Segment, c.Segment.Bytes)
	}
	if err := s.o.CheckSegment(c.Segment); err != nil {
		return nil, err
	}
	if err := c.Segment.Gone(); err != nil {
		return nil, err
	}
	size, err := c.Segment.PieceBytes()
	if err != nil {
		return nil, err
	}
	for i, f := range c.Segment.Pieces {
		if p := e.Pieces[i]; p.Bytes != size {
			return nil, fmt.Errorf("piece %d of its memory has %d bytes, not %d as the others", i, p.Bytes, size)
		} else if err := sameFile(f, p.File); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// sameFile is an error if a descriptor isn't of the file that was kept.
func sameFile(f *fd.FD, kept string) error {
	file, err := f.File()
	if err == nil && file != kept {
		err = fmt.Errorf("it is the file %q, and %q was kept", file, kept)
	}
	return err
}
