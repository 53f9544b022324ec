// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
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

// opened is what a server starts with.
type opened struct {
	listeners []daemon.Listener // that of the instance's own path first
	kept      []daemon.Kept     // what an earlier process has left in the fd store
}

// sockets opens what the server accepts on: the sockets that systemd passed, or
// those of the command line, and a control socket beside the first. The server
// closes the listeners, and release is to be called after that.
func sockets(o serveOptions) (*opened, error) {
	in := new(opened)
	if err := in.all(o); err != nil {
		for _, l := range in.listeners {
			_ = l.Close() // the first error is the one to tell
		}
		for _, k := range in.kept {
			_ = k.FD.Close()
		}
		in.release()
		return nil, err
	}
	return in, nil
}

// release gives up the paths. A file that can't be removed is replaced by the next one.
func (s *opened) release() {
	for _, l := range s.listeners {
		if l.Claim != nil {
			_ = l.Claim.Close()
		}
	}
}

func (s *opened) all(o serveOptions) error {
	for _, p := range absolute(o.listen) {
		if err := s.bind(p, daemon.Target); err != nil {
			return err
		}
	}
	for _, p := range absolute(o.draft) {
		if err := s.bind(p, daemon.Draft); err != nil {
			return err
		}
	}
	if len(s.listeners) == 0 {
		if err := s.passed(); err != nil {
			return err
		}
	}
	if len(s.listeners) == 0 {
		//diag starting
		// `wcache serve` was started by hand without `--listen`, or by a unit without its socket
		// unit. Give `--listen`, or start the socket unit. The exit status is 78.
		return &hinted{
			err:  errors.New("serve: no socket was passed"),
			hint: fmt.Sprintf("systemctl --user enable --now wcache@%s.socket, unless this is root, or give --listen PATH", o.instance),
			exit: exitConfig,
		}
	}
	return s.bind(control.Path(s.listeners[0].Addr().String()), daemon.Control)
}

func (s *opened) bind(path string, role daemon.Role) error {
	l, claim, err := socket.Listen(path)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, daemon.Listener{UnixListener: l, Role: role, Claim: claim})
	return nil
}

// passed takes what came in LISTEN_FDS: sockets by their names, and all else as
// what an earlier process has left in the fd store. Whoever passes no names, as
// systemd-socket-activate does unless it is told to, passes sockets only.
func (s *opened) passed() error {
	files, err := activation.Files()
	if err != nil {
		return err
	}
	roles := map[string]daemon.Role{nameTarget: daemon.Target, nameDraft: daemon.Draft, "": daemon.Target}
	for _, f := range files {
		role, ok := roles[f.Name]
		if !ok {
			s.kept = append(s.kept, daemon.Kept{Name: f.Name, FD: f.FD})
			continue
		}
		l, lerr := f.Listener()
		if lerr != nil {
			err = errors.Join(err, lerr)
			continue
		}
		s.listeners = append(s.listeners, daemon.Listener{UnixListener: l, Role: role})
	}
	if err != nil {
		return err
	}
	// The manager passes the sockets of several units in any order, and the
	// control socket is found by the name of the target's.
	slices.SortStableFunc(s.listeners, func(a, b daemon.Listener) int {
		return order(a.Role) - order(b.Role)
	})
	for i, l := range s.listeners {
		s.listeners[i].Claim = socket.NewClaim(l.Addr().String())
	}
	return nil
}

func order(role daemon.Role) int {
	if role == daemon.Target {
		return 0
	}
	return 1
}
