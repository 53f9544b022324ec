// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/advice"
	"github.com/wcache/wcache/internal/visible"
	"github.com/wcache/wcache/protocol"
)

// Mismatch is the refusal of a key because another key of the directory is held. As in the
// protocol, it consists of the names of the fields that differ.
type Mismatch struct{ Fields []string }

//diag engine FIELDS
// With `policy = "pinned"` the service holds the pinned model under another key, whose listed
// fields differ. Start the engine with the same options as the first one, or change `policy`.

func (m *Mismatch) Error() string { return fmt.Sprintf("compare keys: %v differ", m.Fields) }

// Advice is what to do about it.
func (m *Mismatch) Advice() string {
	return `policy is "pinned": evict what is held first, which frees it`
}

// Refusal gives the first of the fields, and a reason that names all.
func (m *Mismatch) Refusal() (field, reason string, ok bool) {
	reason = "another key of this directory is held, which differs in " + strings.Join(m.Fields, ", ")
	return slices.Concat(m.Fields, []string{""})[0], reason, true
}

// refuse makes the reply for an error. A lasting one becomes a mismatch, after which an
// engine gives up; a passing one becomes an error, after which it tries again. Engines
// print the text of both.
func (b *base) refuse(err error) []byte {
	var differs *Mismatch
	if errors.As(err, &differs) {
		return protocol.Mismatch(differs.Fields)
	}
	if field, reason, lasting := advice.Refusal(err); lasting {
		return protocol.Mismatch([]string{field, visible.Line(withHint(reason, b.hint(err)))})
	}
	return protocol.Error(visible.Line(withHint(err.Error(), b.hint(err))))
}

// controlError makes the error for a control client, which people read.
func (b *base) controlError(err error) *control.Error {
	var known *control.Error
	if errors.As(err, &known) {
		return known
	}
	out := &control.Error{Code: control.CodeFailed, Message: err.Error(), Hint: b.hint(err)}
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

// hint is the advice of an error, "" where only time helps. To advice about wcache.toml it
// adds how to reload it.
func (b *base) hint(err error) string {
	text := advice.Of(err)
	if strings.Contains(text, "wcache.toml") {
		text += "; after a change of wcache.toml: " + b.reread()
	}
	return text
}

// reread is the advice that makes the daemon read a changed configuration.
func (b *base) reread() string {
	return "systemctl --user reload wcache@" + b.o.Instance + ".service, or SIGHUP"
}

func withHint(reason, hint string) string {
	if hint == "" {
		return reason
	}
	return reason + " (" + hint + ")"
}
