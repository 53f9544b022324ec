// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"errors"
	"fmt"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/tensor"
)

// Contents are the result of a load. The cache owns the descriptors from the moment it
// gets them.
type Contents struct {
	Table   *tensor.Table
	TableFD *fd.FD
	Segment device.Segment
	Record  manifest.Entry // all but the names of descriptors and the times, which the cache sets
}

// Close closes the descriptors.
func (c *Contents) Close() error {
	return errors.Join(c.TableFD.Close(), c.Segment.Close())
}

// keep puts the descriptors of contents into the store.
func (c *Contents) keep(store Store) error {
	for i, f := range c.Segment.Pieces {
		if err := store.Put(c.Record.Pieces[i].Name, f); err != nil {
			return err
		}
	}
	return store.Put(c.Record.Table, c.TableFD) // last: if the store has the label, it has all
}

// label replaces the table's file by one that begins with the record, so that the store
// itself says what its descriptors are.
func label(contents *Contents) error {
	table, err := contents.TableFD.ReadSealed(tensor.MaxEncoded)
	if err != nil {
		return fmt.Errorf("label table: %w", err)
	}
	b, err := manifest.EncodeLabel(contents.Record, table)
	if err != nil {
		return fmt.Errorf("label table: %w", err)
	}
	labelled, err := fd.Sealed("wcache-table", b)
	if err != nil {
		return fmt.Errorf("label table: %w", err)
	}
	_ = contents.TableFD.Close() // it was only read
	contents.TableFD = labelled
	return nil
}

// Store keeps descriptors, by name, beyond the end of this process. The cache never uses a
// name twice. Methods may take long: the cache calls them without a lock. Put doesn't take
// ownership of f.
type Store interface {
	// Room reports why n more descriptors would not be kept, nil if they would.
	Room(n int) error
	Put(name string, f *fd.FD) error
	Remove(name string) error
}

// noStore keeps nothing and always has room.
type noStore struct{}

func (noStore) Room(int) error           { return nil }
func (noStore) Put(string, *fd.FD) error { return nil }
func (noStore) Remove(string) error      { return nil }
