// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/evidence"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// started finds the model that an engine's process was started with, nil if its command
// and environment don't say. The engine waits for its answer meanwhile, so it hasn't ended
// and its pid can't mean another process.
func (f *finder) started(p peer.Process, key fingerprint.Key) (*resolve.Started, error) {
	e, err := evidence.Read(p.PID)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the engine's model: %w", err)
	}
	place, err := e.Locate(key.Bool("is_draft"))
	by := fmt.Sprintf("%s (pid %d)", e.Program, e.PID)
	var unsure *evidence.Uncertain
	var missing *weights.NotFound
	switch {
	case errors.As(err, &unsure), errors.Is(err, fs.ErrPermission):
		return nil, nil
	case errors.As(err, &missing):
		//diag model PROCESS MODEL REASON
		// The directory was removed or renamed since the engine started. Put it back, or start the
		// engine with the new path.
		return nil, &resolve.Refusal{
			Field: "checkpoint", Reason: fmt.Sprintf("%s was started with %q, which no longer exists: %v", by, missing.Name, missing),
			Hint: "start the engine again",
		}
	case err != nil:
		return nil, fmt.Errorf("find the engine's model: %w", err)
	}
	if dir := f.ownPath(place, key); dir != "" {
		return &resolve.Started{Name: place.Name, Dir: dir, By: by}, nil
	}
	//diag model PROCESS MODEL PATH
	// The engine runs in a container or another mount namespace, and the daemon finds the folder
	// under no path of its own. Add the folder that holds the model, by its path outside the
	// container, to `roots`.
	return nil, &resolve.Refusal{
		Field: "checkpoint",
		Reason: fmt.Sprintf("%s was started with %s, which it sees as %s; the daemon knows no path to it",
			by, place.Name, place.Path),
		Hint: "add its folder, by the path that the daemon sees, to roots in wcache.toml",
	}
}

// ownPath is the path by which this process reaches the model that an engine sees in
// another mount namespace: the same path, or the path of a known directory with the same
// device and inode; "" for none.
func (f *finder) ownPath(place *evidence.Place, key fingerprint.Key) string {
	if place.Own != "" {
		return place.Own
	}
	for _, d := range f.o.Index.Known(key.Str("checkpoint")) {
		if d.Device == place.Device && d.Inode == place.Inode {
			return d.Path
		}
	}
	return ""
}
