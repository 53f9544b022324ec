// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/visible"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// Mismatch is the refusal of a key because of one that is held, in the protocol's
// own words: the names of the fields that differ.
type Mismatch struct{ Fields []string }

func (m *Mismatch) Error() string { return fmt.Sprintf("compare keys: %v differ", m.Fields) }

// lasting reports whether asking again is of no use until somebody has acted.
func lasting(err error) bool {
	var differs *Mismatch
	var no *resolve.Refusal
	return errors.As(err, &differs) || errors.As(err, &no) || damaged(err)
}

// refuse words an error as the protocol wants it: what lasts is a mismatch, at
// which an engine gives up; what passes is an error, at which it tries again. Engines
// print both as they are.
func (s *Server) refuse(err error) []byte {
	var differs *Mismatch
	if errors.As(err, &differs) {
		return protocol.Mismatch(differs.Fields)
	}
	var no *resolve.Refusal
	if errors.As(err, &no) {
		return protocol.Mismatch([]string{no.Field, visible.Line(withHint(no.Reason, s.hint(err)))})
	}
	if damaged(err) {
		return protocol.Mismatch([]string{"checkpoint", visible.Line(withHint(err.Error(), s.hint(err)))})
	}
	return protocol.Error(visible.Line(withHint(err.Error(), s.hint(err))))
}

// controlError words an error for people at a terminal.
func (s *Server) controlError(err error) *control.Error {
	var known *control.Error
	if errors.As(err, &known) {
		return known
	}
	out := &control.Error{Code: control.CodeFailed, Message: err.Error(), Hint: s.hint(err)}
	var inUse *cache.InUse
	var none *cache.NoEntry
	var loading *cache.BeingLoaded
	switch {
	case errors.As(err, &inUse), errors.As(err, &loading):
		out.Code = control.CodeInUse
	case errors.As(err, &none):
		out.Code = control.CodeNoKey
	}
	return out
}

// hint is what to do about an error, "" where only time helps. What is changed in the
// configuration counts when that is read again.
func (s *Server) hint(err error) string {
	text := s.advice(err)
	if strings.Contains(text, "wcache.toml") {
		text += "; after a change of wcache.toml: " + s.reread()
	}
	return text
}

// reread is how a configuration that was changed comes to count.
func (s *Server) reread() string {
	return "systemctl --user reload wcache@" + s.o.Instance + ".service, or SIGHUP"
}

func (s *Server) advice(err error) string {
	var no *resolve.Refusal
	var unsure *resolve.Uncertain
	var differs *Mismatch
	var inUse *cache.InUse
	var none *cache.NoEntry
	var loading *cache.BeingLoaded
	var stale *cache.Stale
	var hung *hangs
	var room *cache.NoRoom
	var missing *weights.NotFound
	var failed *loader.Error
	var slow *tooSlow
	var fault *config.Error
	var gone *gpuGone
	var busy *weights.Busy
	switch {
	case errors.As(err, &no):
		return no.Hint
	case errors.As(err, &unsure):
		return unsure.Hint
	case errors.As(err, &stale):
		return "wait until its files stay as they are"
	case errors.As(err, &hung):
		return "see why the file system does not answer; other models are served meanwhile"
	case errors.As(err, &differs):
		return `policy is "pinned": evict what is held first, which frees it`
	case errors.As(err, &inUse):
		return "end the engines, or evict with --force: they keep what they have mapped"
	case errors.As(err, &none):
		return "wcache status lists the keys"
	case errors.As(err, &loading):
		return "evict it when it is loaded"
	case errors.As(err, &room):
		return "wcache evict frees what is held, budget in wcache.toml allows more"
	case errors.As(err, &missing):
		return "download it, or name its directory"
	case errors.As(err, &busy):
		return "ask again when those are loaded"
	case errors.As(err, &slow):
		return "load_timeout in wcache.toml allows more"
	case errors.As(err, &fault):
		return "mend it, then have it read: " + s.reread()
	case errors.As(err, &gone):
		return gone.health.Reason
	case errors.As(err, &failed):
		return failedHint(failed, s.o.GPU)
	}
	return ""
}

func failedHint(err *loader.Error, gpu bool) string {
	switch err.Kind {
	case loader.KindNoMemory:
		return "wcache evict frees what is held, all else is another program's"
	case loader.KindFileChanged:
		return "wait until nobody writes to it"
	case loader.KindDamaged:
		return fetchAgain
	case loader.KindNoDevice:
		return "wcache doctor looks for what is missing"
	case loader.KindFileUnreadable:
		return "see that the file is there and can be read"
	}
	if gpu {
		return "nvidia-smi says how the GPU is, and the service's log may say more"
	}
	return "the service's log may say more"
}

func withHint(reason, hint string) string {
	if hint == "" {
		return reason
	}
	return reason + " (" + hint + ")"
}

// tooSlow is the error of a load that took longer than it may.
type tooSlow struct{ limit time.Duration }

func (e *tooSlow) Error() string { return fmt.Sprintf("it took longer than %v", e.limit) }

// unread words why a request could not be read; nil where nobody asked anything.
func unread(ctx context.Context, err error, limit time.Duration) error {
	switch {
	case errors.Is(err, io.EOF): // one who only looks whether somebody is there
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(context.Cause(ctx), errCrowded):
		return errCrowded
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return cache.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("read request: it has not come within %v", limit)
	}
	return err
}
