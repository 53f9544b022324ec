// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package resolve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/index"
)

// chooser chooses among the directories of one checkpoint hash.
type chooser struct {
	ctx    context.Context
	o      Options
	key    fingerprint.Key
	answer index.Answer
	basis  basis

	dirs     []string // candidates, without links
	open     map[string]*weights.Dir
	unsure   []error // why directories that may be candidates can't be checked
	excluded []error // why others aren't candidates
}

func (c *chooser) choose() (Choice, error) {
	c.basis.pins = RealPins(c.o.Pins)
	c.open = make(map[string]*weights.Dir)
	defer func() {
		for _, d := range c.open {
			d.Close()
		}
	}()
	for _, u := range c.answer.Unsure {
		c.unsure = append(c.unsure, fmt.Errorf("%s: %w", u.Path, u.Err))
	}
	for _, d := range c.answer.Dirs {
		dir, err := real(d.Path)
		if err != nil {
			c.unsure = append(c.unsure, err)
			continue
		}
		if !slices.Contains(c.dirs, dir) {
			c.dirs = append(c.dirs, dir)
		}
	}
	slices.Sort(c.dirs)
	if len(c.dirs) == 0 && len(c.unsure) == 0 {
		return Choice{}, c.none()
	}
	if err := c.revision(); err != nil {
		return Choice{}, err
	}
	if by, narrowed := c.narrow(); narrowed {
		return c.equal(by)
	}
	if len(c.dirs) > 1 {
		c.exclude()
	}
	switch {
	case len(c.dirs) == 0 && len(c.unsure) == 0:
		return Choice{}, c.noneFits()
	case len(c.unsure) > 0:
		//diag certain REASON
		// A file of that directory is being written, is damaged, or belongs to another user. Mend
		// what the reason names; a download needs only time.
		return Choice{}, c.uncertain(fmt.Sprintf("a directory that may be meant can't be read now: %v", c.unsure[0]), true)
	}
	if partly, passing := c.partly(); partly != "" {
		return Choice{}, c.uncertain(partly, passing)
	}
	c.basis.gone = anyGone
	if gone := c.o.mayMean(c.answer.Gone); gone != nil {
		//diag certain DIRECTORY TIME
		// Another directory had the headers when the engine may have read them, and was removed or
		// changed since. Start the engine again.
		return Choice{}, c.uncertain(fmt.Sprintf("%s had the same headers until %s, and the engine may have read them there",
			gone.Path, gone.At.Format(time.TimeOnly)), false)
	}
	by := ByOnly
	if len(c.dirs) > 1 {
		by = ByContent
	}
	choice, err := c.equal(by)
	if err == nil && c.o.Strict {
		//diag certain
		// The only directory that fits is not enough with this setting. Start the engine as
		// `vllm serve DIRECTORY` or with `--revision`, pin the directory, or change `identify`; see
		// wcache.toml(5).
		return Choice{}, c.uncertain(`identify = "strict" wants the engine, a revision or a pin to say which directory is meant`, false)
	}
	return choice, err
}

// narrow keeps only the candidates that the key's revision or a pin names. A pin
// decides nothing if a snapshot of the revision can't be read now, or existed while
// the engine read headers.
func (c *chooser) narrow() (Sure, bool) {
	if c.key.Revision().Exact() != "" {
		if slices.ContainsFunc(c.dirs, isSnapshot) {
			c.dirs = slices.DeleteFunc(c.dirs, func(d string) bool { return !isSnapshot(d) })
			return ByRevision, true
		}
		c.basis.gone = snapshotGone
		gone := slices.DeleteFunc(slices.Clone(c.answer.Gone), func(g index.Gone) bool { return !c.ofRevision(g.Path) })
		unsure := slices.ContainsFunc(c.answer.Unsure, func(u index.Unsure) bool { return c.ofRevision(u.Path) })
		if unsure || c.o.mayMean(gone) != nil {
			return "", false
		}
	}
	pinned := slices.DeleteFunc(slices.Clone(c.dirs), func(d string) bool { return !slices.Contains(c.basis.pins, d) })
	if len(pinned) > 0 {
		c.dirs = pinned
		return ByPin, true
	}
	return "", false
}

// revision drops snapshots of a Hugging Face cache that belong to another revision than
// the key's, if the key names one.
func (c *chooser) revision() error {
	want := c.key.Revision().Exact()
	if want == "" {
		return nil
	}
	var of []string
	before := len(c.dirs)
	c.dirs = slices.DeleteFunc(c.dirs, func(dir string) bool {
		if !isSnapshot(dir) {
			return false
		}
		//diag model DIRECTORY REVISION
		// The engine asks for a revision, and the directory that fits is the snapshot of another
		// revision, or isn't a snapshot. Fetch that revision, or start the engine with the directory.
		of = append(of, fmt.Sprintf("%s is not revision %q", dir, want))
		return !c.ofRevision(dir)
	})
	if len(c.dirs) == 0 && before > 0 && len(c.unsure) == 0 {
		return &Refusal{
			Field:  "revision",
			Reason: strings.Join(of, "; "),
			Hint:   "fetch that revision into a folder that is below roots in wcache.toml",
		}
	}
	return nil
}

// ofRevision reports whether a directory is a snapshot of the key's revision.
func (c *chooser) ofRevision(dir string) bool {
	said := c.key.Revision()
	commit := said.Exact()
	if !isSnapshot(dir) || !filepath.IsLocal(commit) {
		return false
	}
	if !commitName.MatchString(commit) {
		ref := filepath.Join(filepath.Dir(filepath.Dir(dir)), "refs", commit)
		commit = readRef(ref)
		c.basis.refs = append(c.basis.refs, ref, commit)
	}
	return commit == filepath.Base(dir) && ofRepo(dir, said.Repo)
}

var commitName = regexp.MustCompile(`^[0-9a-f]{40}$`)

// isSnapshot reports whether a directory is a snapshot in a Hugging Face cache:
// models--OWNER--NAME/snapshots/COMMIT.
func isSnapshot(dir string) bool {
	parent := filepath.Dir(dir)
	return commitName.MatchString(filepath.Base(dir)) && filepath.Base(parent) == "snapshots" &&
		strings.HasPrefix(filepath.Base(filepath.Dir(parent)), "models--")
}

// ofRepo reports whether a snapshot belongs to a repository; "" stands for any repository.
func ofRepo(snapshot, repo string) bool {
	folder := filepath.Base(filepath.Dir(filepath.Dir(snapshot)))
	return repo == "" || folder == "models--"+strings.ReplaceAll(repo, "/", "--")
}

// readRef gives the commit that a branch or tag points to, "" if the cache doesn't
// record it.
func readRef(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// refsAre reports whether refs, pairs of path and commit, still hold these commits.
func refsAre(refs []string) bool {
	for i := 0; i+1 < len(refs); i += 2 {
		if readRef(refs[i]) != refs[i+1] {
			return false
		}
	}
	return true
}

// exclude drops candidates that the key certainly doesn't mean: their architecture,
// quantization or rope parameters differ. A candidate that can't be read stays.
func (c *chooser) exclude() {
	var left []string
	for _, path := range c.dirs {
		d, err := c.o.Memory.Open(c.ctx, path)
		if err != nil {
			c.unsure = append(c.unsure, err)
			continue
		}
		c.open[path] = d
		var open *unknown
		switch err := match(c.key, d); {
		case err == nil:
			left = append(left, path)
		case errors.As(err, &open):
			c.unsure = append(c.unsure, err)
		default:
			c.excluded = append(c.excluded, err)
		}
	}
	c.dirs = left
}

// equal gives the first candidate if all candidates hold the same model.
func (c *chooser) equal(by Sure) (Choice, error) {
	var first *weights.Dir
	for _, path := range c.dirs {
		if len(c.dirs) == 1 {
			break
		}
		d := c.open[path]
		if d == nil {
			var err error
			if d, err = c.o.Memory.Open(c.ctx, path); err != nil {
				return Choice{}, lasting(err)
			}
			c.open[path] = d
		}
		if first == nil {
			first = d
			continue
		}
		if err := c.ctx.Err(); err != nil {
			return Choice{}, fmt.Errorf("compare model directories: %w", err)
		}
		same, err := weights.SameContent(first, d)
		if err != nil {
			return Choice{}, fmt.Errorf("compare model directories: %w", err)
		}
		if !same {
			//diag model NUMBER LIST
			// Fine-tunes of one model have the same headers, and the engine's request doesn't tell them
			// apart. Start the engine as `vllm serve DIRECTORY`, or name the directory that is meant in
			// `pins`.
			return Choice{}, &Refusal{
				Field:  "checkpoint",
				Reason: fmt.Sprintf("%d model directories have the same headers and different weights: %s", len(c.dirs), strings.Join(c.dirs, ", ")),
				Hint:   settle(c.dirs),
			}
		}
	}
	return Choice{Dir: c.dirs[0], Sure: by}, nil
}

// settle is the advice that makes one of the directories certain.
func settle(dirs []string) string {
	dir := "DIR"
	if len(dirs) > 0 {
		dir = dirs[0]
	}
	return fmt.Sprintf("start the engine as: vllm serve %s; or name the one that is meant in wcache.toml: pins = [%q]", dir, dir)
}

// uncertain makes the error that says why no directory is certain.
func (c *chooser) uncertain(reason string, passing bool) error {
	switch len(c.dirs) {
	case 0:
		//diag model REASON
		// Directories that may have the engine's model can't be read or searched now. Start the
		// engine as `vllm serve DIRECTORY`, or name the directory in `pins`. The next section
		// explains the reason.
		reason = "no model directory is certain to be meant: " + reason
	case 1:
		//diag model DIRECTORY REASON
		// One directory has the headers of the engine's model, and wcache can't exclude that the
		// engine reads another one. Start the engine as `vllm serve DIRECTORY`, which wcache reads
		// from its command line, or name the directory in `pins`. The next section explains the
		// reason.
		reason = fmt.Sprintf("it is not certain that %s is meant: %s", c.dirs[0], reason)
	default:
		//diag model LIST REASON
		// Several directories have the headers of the engine's model, and nothing says which of
		// them the engine reads. Start the engine as `vllm serve DIRECTORY`, which wcache reads
		// from its command line, or name the directory in `pins`. The next section explains the
		// reason.
		reason = fmt.Sprintf("it is not certain which directory is meant (%s): %s", strings.Join(c.dirs, ", "), reason)
	}
	if passing {
		return &Uncertain{Reason: reason, Hint: settle(c.dirs)}
	}
	return &Refusal{Field: "checkpoint", Reason: reason, Hint: settle(c.dirs)}
}

// partly names the roots that are not completely known, "" if all are, and tells whether
// asking again may help.
func (c *chooser) partly() (reason string, passing bool) {
	var list []string
	for _, r := range c.answer.Roots {
		if r.State == index.Hung && r.Whole {
			continue // its directories are known, and unsure lists the unreadable ones
		}
		why := r.Reason
		switch {
		case r.State == index.Searching:
			why = "it is being searched"
		case why == "":
			why = string(r.State)
		}
		passing = passing || r.State != index.Partial
		//diag certain ROOT REASON
		// The search of this folder has not ended, or part of it can't be read, so that more
		// directories may fit. Wait, or mend what the reason names; `wcache status` shows the state
		// of each root.
		list = append(list, fmt.Sprintf("root %s is not searched whole: %s", r.Path, why))
	}
	return strings.Join(list, "; "), passing
}

// mayMean gives a directory that existed while the engine's process ran, so that the
// engine may have read its headers; nil if there is none.
func (o Options) mayMean(gone []index.Gone) *index.Gone {
	for _, g := range gone {
		if g.At.After(o.Began) && time.Since(g.At) < index.GoneFor {
			return &g
		}
	}
	return nil
}

// none makes the refusal of a hash that no known directory has.
func (c *chooser) none() error {
	//diag model HASH
	// The engine's model is in no directory that the service searches. Add its folder to `roots` in
	// wcache.toml(5), or name the model once with `wcache warm`.
	reason := fmt.Sprintf("no model directory with the checkpoint hash %s is known", c.key.Str("checkpoint"))
	hint := "add its folder to roots in wcache.toml, or run: wcache warm DIR"
	partly, passing := c.partly()
	if partly != "" {
		reason += "; " + partly
	}
	if passing {
		return &Uncertain{Reason: reason, Hint: hint}
	}
	return &Refusal{Field: "checkpoint", Reason: reason, Hint: hint}
}

// noneFits makes the refusal of a hash whose directories are all excluded.
func (c *chooser) noneFits() error {
	if len(c.excluded) == 1 {
		return c.excluded[0]
	}
	//diag model NUMBER
	// Each of them has a `config.json` that contradicts the engine's key; the rest of the message
	// lists the differences of each. `wcache explain KEY DIRECTORY` shows all fields.
	r := &Refusal{Field: "checkpoint", Reason: fmt.Sprintf("%d model directories have these headers and none fits", len(c.excluded))}
	for _, err := range c.excluded {
		var one *Refusal
		if errors.As(err, &one) {
			r.Field, r.Hint = one.Field, one.Hint
			r.Reason += "; " + one.Reason
		}
	}
	return r
}
