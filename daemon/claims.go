// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import "sync"

// claims is what is wrong with the files of the sockets. Safe for concurrent use.
type claims struct {
	mu    sync.Mutex
	wrong []error // by listener, nil for all that is well
}

// problems are what is wrong now.
func (c *claims) problems() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.wrong...)
}

// note takes in what is wrong with a socket's files, and reports whether that is news.
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
