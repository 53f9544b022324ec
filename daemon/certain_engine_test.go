// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/resolve"
)

// target is what an engine was started with.
type target struct {
	path     string // as it was given, which may be a link
	evidence bool   // its process says so
	revision string
	began    time.Time // when it read the headers
}

// engine has an engine ask, and sometimes goes on meanwhile.
func (w *world) engine() {
	if len(w.places) == 0 {
		return
	}
	e := target{path: w.any(w.places), evidence: w.rng.IntN(2) == 0}
	inside := strings.HasPrefix(e.path, filepath.Join(w.dir, "root")) || strings.HasPrefix(e.path, filepath.Join(w.dir, "more"))
	if !inside {
		e.evidence = true // without it, it is trusted to be below a root
	}
	if filepath.Base(filepath.Dir(e.path)) == "snapshots" && w.rng.IntN(2) == 0 {
		e.revision = filepath.Base(e.path)
	}
	pinned := len(w.config.Pins) > 0
	if pinned && !e.evidence && e.revision == "" {
		// A pin says what is meant: an engine without evidence on another directory is
		// the configuration's fault.
		e.path = w.config.Pins[0]
	}
	e.began = time.Now()
	patient, alone := !e.evidence && !pinned && w.rng.IntN(3) == 0, w.rng.IntN(3) > 0
	if !e.evidence && !pinned && (patient || !alone) {
		held, rest := w.during(e.path, e.began, e.began)
		if len(held) == 0 || !rest {
			return
		}
		// What comes and goes before the index looks was never there for it.
		_, err := w.s.o.Index.Lookup(context.Background(), w.key("").Str("checkpoint"))
		do(w.t, err)
	}
	if patient {
		w.patient = append(w.patient, e)
		return
	}
	w.engines.Go(func() { w.ask(e, pinned) })
	if alone {
		w.engines.Wait()
	}
}

// again has an engine ask that read the headers some steps ago, as one does that was
// given an error meanwhile.
func (w *world) again() {
	if len(w.patient) == 0 || len(w.config.Pins) > 0 {
		return
	}
	n := w.rng.IntN(len(w.patient))
	e := w.patient[n]
	w.patient = slices.Delete(w.patient, n, n+1)
	w.ask(e, false)
}

func (w *world) ask(e target, pinned bool) {
	key := w.key(e.revision)
	from := e.began
	if held, rest := w.during(e.path, from, from); !e.evidence && !rest {
		return // an engine could read no headers there, and asks for nothing
	} else if len(held) == 0 {
		return
	}
	var said *resolve.Started
	if e.evidence {
		said = &resolve.Started{Name: e.path, Dir: e.path, By: "engine"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	hold, miss, err := w.s.find(ctx, key, func(ctx context.Context) (resolve.Choice, error) {
		return w.s.finder.identify(ctx, key, e.began, func() (*resolve.Started, error) { return said, nil })
	})
	to := time.Now()
	w.doing.Lock() // what is being done has to be noted whole
	defer w.doing.Unlock()
	versions, rest := w.during(e.path, from, to)
	if err != nil {
		switch {
		case !rest:
			w.moving.Add(1)
		case e.evidence:
			w.refused.Add(1)
			w.t.Errorf("seed %d: an engine that was started with %s, which is at rest, got: %v\n%s", w.seed, e.path, err, w.report())
		default:
			w.unsure.Add(1)
		}
		return
	}
	defer hold.Release()
	got, err := versionOf(hold)
	for _, v := range versions {
		if err == nil && v == got && v != 0 {
			w.right.Add(1)
			if miss == nil {
				w.hits.Add(1)
			}
			return
		}
	}
	if err != nil && slices.Contains(versions, got) && !rest {
		w.moving.Add(1) // the directory itself held a mixture
		return
	}
	w.wrong.Add(1)
	w.t.Errorf("seed %d: an engine on %s (evidence %v, revision %q, pins %v), began %s ago, got version %d (%v) of %s, sure by %s; its path held %v\n%s",
		w.seed, e.path, e.evidence, e.revision, pinned, to.Sub(e.began), got, err, hold.Model(), hold.By(), versions, w.report())
}
