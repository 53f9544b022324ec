// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package advice reads what errors say beyond their message: what the user can do, and whether
// the same request can succeed later.
package advice

import "errors"

// Giver is an error with advice: what the user can do, "" where only time helps. Advice that
// loses weights says so.
type Giver interface {
	error
	Advice() string
}

// Of gives the advice of the outermost [Giver] of an error's chain, "" if there is none.
func Of(err error) string {
	var g Giver
	if !errors.As(err, &g) {
		return ""
	}
	return g.Advice()
}

// Refuser is an error that may be a refusal: the same request fails until the user changes
// something, so the engine should load from disk at once.
type Refuser interface {
	error
	// Refusal gives the field of the engine's key that caused it, "" for none, and the reason
	// as text for people. It is false if the error isn't a refusal.
	Refusal() (field, reason string, ok bool)
}

// Refusal gives the refusal of the outermost [Refuser] of an error's chain.
func Refusal(err error) (field, reason string, ok bool) {
	var r Refuser
	if !errors.As(err, &r) {
		return "", "", false
	}
	return r.Refusal()
}
