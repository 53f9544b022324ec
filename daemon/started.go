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

// started is the model that an engine's process says it was started with, nil where it
// says nothing. The engine waits for its answer at the other end of the connection: it
// has not ended, and its number is no other's.
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
			Field: "checkpoint", Reason: fmt.Sprintf("%s was started with %q, which is not there any more: %v", by, missing.Name, missing),
			Hint: "start the engine again",
		}
	case err != nil:
		return nil, fmt.Errorf("find the engine's model: %w", err)
	}
	if dir := f.ownPath(place, key); dir != "" {
		return &resolve.Started{Name: place.Name, Dir: dir, By: by}, nil
	}
	//diag model PROCESS MODEL PATH
	// The engine runs in a container or another mount namespace, and the same folder has no known
	// name outside. Add the folder that holds the model on this side to `roots`.
	return nil, &resolve.Refusal{
		Field: "checkpoint",
		Reason: fmt.Sprintf("%s was started with %s, which it sees as %s and which is not known here under any name",
			by, place.Name, place.Path),
		Hint: "add the folder that it is on this side to roots in wcache.toml",
	}
}

// ownPath is the path by which this process reaches what an engine sees in another mount
// namespace: the same one, or that of a known directory that is the same; "" for none.
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
