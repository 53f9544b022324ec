// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation

import (
	"fmt"
	"runtime"

	"github.com/wcache/wcache/internal/fd"
)

const (
	// maxRights is SCM_MAX_FD of Linux: the most descriptors of one message.
	maxRights = 253
	// maxName is FDNAME_MAX of systemd. The manager stores a descriptor with a longer name
	// as "stored", so that the next process can't find it.
	maxName = 255
)

// Store stores duplicates of fds with the manager, which passes them as [Files] of this name
// to the next process of the service: after a restart or a crash, not after a stop or a clean
// exit. The caller keeps fds. The manager keeps one descriptor per open file. Several
// descriptors may have one name, but they come back in no particular order: give each
// descriptor that has to be told apart its own name.
//
// The manager keeps at most [Notifier.StoreLimit] descriptors and closes others without an
// error, so check before. It compares each descriptor with all stored ones, so that 2000 keep
// it busy for about a second. The unit's soft limit of open files must exceed the number of
// stored descriptors and sockets, or the next start fails; a Go program raises its own limit,
// so it can't see that one.
//
// An invalid name or descriptor is an error before anything is sent. After another error some
// of fds may be stored: remove the name.
func (n *Notifier) Store(name string, fds ...*fd.FD) error {
	if n == nil {
		return nil
	}
	if err := checkName(name); err != nil {
		return fmt.Errorf("store descriptors: %v", err)
	}
	numbers := make([]int, len(fds))
	for i, f := range fds {
		if numbers[i] = f.Int(); numbers[i] < 0 {
			return fmt.Errorf("store descriptors as %q: number %d of %d is closed", name, i+1, len(fds))
		}
	}
	for len(numbers) > 0 {
		part := numbers[:min(len(numbers), maxRights)]
		numbers = numbers[len(part):]
		// Without FDPOLL=0 the manager would drop a connection that hangs up. If an engine ends
		// during a restart, the next daemon must see that on its connection.
		if err := n.send("FDSTORE=1\nFDNAME="+name+"\nFDPOLL=0", part...); err != nil {
			return err
		}
	}
	runtime.KeepAlive(fds)
	return nil
}

// Remove has the manager close all descriptors that it keeps under name, if
// there are any.
func (n *Notifier) Remove(name string) error {
	if n == nil {
		return nil
	}
	if err := checkName(name); err != nil {
		return fmt.Errorf("remove stored descriptors: %v", err)
	}
	return n.send("FDSTOREREMOVE=1\nFDNAME=" + name)
}

// StoreLimit is the number of descriptors that the manager keeps for this service. Systemd
// passes it from version 254 on, as FDSTORE; without that, StoreLimit takes WCACHE_FDSTORE,
// which the unit sets together with FileDescriptorStoreMax=.
func (n *Notifier) StoreLimit() (limit int, known bool) {
	if n == nil || n.store == 0 {
		return 0, false
	}
	return n.store, true
}

// checkName checks the rules of fdname_is_valid in systemd. It refuses invalid names, which
// the manager would replace, see [maxName].
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("a name of %d bytes, not 1 to %d", len(name), maxName)
	}
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == ':' {
			return fmt.Errorf("name %q has characters other than printable ASCII without a colon", name)
		}
	}
	return nil
}
