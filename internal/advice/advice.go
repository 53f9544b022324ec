// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package advice is what an error says beyond its message: what its reader can do, and
// whether the same request can succeed later.
package advice

import "errors"

// Giver is an error that says what its reader can do about it, "" where only time helps.
// Advice that loses weights says so.
type Giver interface {
	error
	Advice() string
}

// Of gives the advice of the outermost error of a chain that gives any kind of it.
func Of(err error) string {
	var g Giver
	if !errors.As(err, &g) {
		return ""
	}
	return g.Advice()
}

// Refuser is an error that may be a refusal: the same request fails until somebody has
// changed something, so that an engine does well to load from disk at once.
type Refuser interface {
	error
	// Refusal gives the field of the engine's key that it is about, "" for none, and the
	// reason as a sentence for people.
	Refusal() (field, reason string, ok bool)
}

// Refusal is that of the outermost error of a chain that may be one.
func Refusal(err error) (field, reason string, ok bool) {
	var r Refuser
	if !errors.As(err, &r) {
		return "", "", false
	}
	return r.Refusal()
}
