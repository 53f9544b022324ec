// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/wcache/wcache/internal/hungfs"
)

// scene is an activity below the roots while engines ask.
type scene struct {
	name  string
	roots []string     // more roots, that it needs
	begin func() error // called once the model is held
	end   func() error // may be called again, or without begin
	seen  func() bool  // whether the service has noticed it; nil: that can't be seen
}

func nothing() error { return nil }

func (t *tree) quiet() (*scene, error) {
	return &scene{name: "quiet", begin: nothing, end: nothing}, nil
}

// hung is a root with a model; it hangs once begin is called. The error is a
// [*hungfs.Unavailable] if the machine can't have one.
func (t *tree) hung() (*scene, error) {
	f, err := hungfs.Mount(t.nfs, os.DirFS(t.remote))
	if err != nil {
		return nil, err
	}
	begin := func() error {
		f.Hang()
		// A service that polls notices it now; another one with the next request.
		for range 30 {
			if f.Waiting() {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}
	return &scene{name: "a root hangs", roots: []string{t.nfs}, begin: begin, end: f.Close, seen: f.Waiting}, nil
}

// downloading is a root into which downloads write.
func (t *tree) downloading() (*scene, error) {
	stop := nothing
	begin := func() error {
		end, err := t.download()
		if err == nil {
			stop = sync.OnceValue(end)
		}
		return err
	}
	roots := []string{filepath.Dir(filepath.Join(t.loads, growingShard)), filepath.Join(t.loads, "hub")}
	return &scene{name: "a download", roots: roots, begin: begin, end: func() error { return stop() }}, nil
}
