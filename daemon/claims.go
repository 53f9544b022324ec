// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import "sync"

// claims holds the problems of the sockets' files. Safe for concurrent use.
type claims struct {
	mu    sync.Mutex
	wrong []error // by listener, nil: no problem
}

// problems are the current problems, with nil for each socket that is well.
func (c *claims) problems() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.wrong...)
}

// note sets the problem of a socket's files, nil for none, and reports whether it is new.
func (c *claims) note(i int, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.wrong) <= i {
		c.wrong = append(c.wrong, nil)
	}
	before := c.wrong[i]
	c.wrong[i] = err
	return err != nil && (before == nil || before.Error() != err.Error())
}
