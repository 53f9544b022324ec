// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package listeners opens the sockets of a server: those that systemd passed, or those that
// the user named.
package listeners

import (
	"errors"
	"slices"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon"
	"github.com/wcache/wcache/daemon/socket"
)

// Names of the descriptors that the socket units pass.
const (
	nameTarget = "wcache"
	nameDraft  = "wcache-draft"
)

// ErrNone is the error of [Open] if systemd passed no socket and the user named none.
var ErrNone = errors.New("open sockets: no socket was passed")

// Opened holds the descriptors that a server starts with.
type Opened struct {
	Listeners []daemon.Listener // the instance's own socket first
	Kept      []daemon.Kept     // what an earlier process has left in the fd store
}

// Open opens sockets at the absolute paths listen, for target models, and draft, for draft
// models; without any it takes the sockets that systemd passed. It adds a control socket
// beside the first. The server closes the listeners and takes the kept descriptors; the
// caller calls Release after that.
func Open(listen, draft []string) (*Opened, error) {
	in := new(Opened)
	if err := in.all(listen, draft); err != nil {
		for _, l := range in.Listeners {
			_ = l.Close() // the first error is the one to tell
		}
		for _, k := range in.Kept {
			_ = k.FD.Close()
		}
		in.Release()
		return nil, err
	}
	return in, nil
}

// Release removes the files of the sockets and releases their locks. The next daemon
// replaces files that can't be removed.
func (o *Opened) Release() {
	for _, l := range o.Listeners {
		if l.Claim != nil {
			_ = l.Claim.Close()
		}
	}
}

func (o *Opened) all(listen, draft []string) error {
	for _, p := range listen {
		if err := o.bind(p, daemon.Target); err != nil {
			return err
		}
	}
	for _, p := range draft {
		if err := o.bind(p, daemon.Draft); err != nil {
			return err
		}
	}
	if len(o.Listeners) == 0 {
		if err := o.passed(); err != nil {
			return err
		}
	}
	if len(o.Listeners) == 0 {
		return ErrNone
	}
	return o.bind(control.Path(o.Listeners[0].Addr().String()), daemon.Control)
}

func (o *Opened) bind(path string, role daemon.Role) error {
	l, claim, err := socket.Listen(path)
	if err != nil {
		return err
	}
	o.Listeners = append(o.Listeners, daemon.Listener{UnixListener: l, Role: role, Claim: claim})
	return nil
}

// passed takes the descriptors of LISTEN_FDS: sockets by their names, and all others as
// descriptors that an earlier process left in the fd store. Without names, as
// systemd-socket-activate passes them by default, all are sockets for target models.
func (o *Opened) passed() error {
	files, err := activation.Files()
	if err != nil {
		return err
	}
	roles := map[string]daemon.Role{nameTarget: daemon.Target, nameDraft: daemon.Draft, "": daemon.Target}
	for _, f := range files {
		role, ok := roles[f.Name]
		if !ok {
			o.Kept = append(o.Kept, daemon.Kept{Name: f.Name, FD: f.FD})
			continue
		}
		l, lerr := f.Listener()
		if lerr != nil {
			err = errors.Join(err, lerr)
			continue
		}
		o.Listeners = append(o.Listeners, daemon.Listener{UnixListener: l, Role: role})
	}
	if err != nil {
		return err
	}
	// The service manager passes the sockets of several units in any order, and the path of
	// the control socket follows from the path of the first one.
	slices.SortStableFunc(o.Listeners, func(a, b daemon.Listener) int {
		return order(a.Role) - order(b.Role)
	})
	for i, l := range o.Listeners {
		o.Listeners[i].Claim = socket.NewClaim(l.Addr().String())
	}
	return nil
}

func order(role daemon.Role) int {
	if role == daemon.Target {
		return 0
	}
	return 1
}
