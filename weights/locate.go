// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

// NotFound is the error for a model that isn't on this machine.
type NotFound struct {
	Name     string
	Revision string
	Reason   string
	Tried    []string // paths
}

func (e *NotFound) Error() string { panic("not yet") }

// Locate finds the directory of a model: an absolute path, or a model id in the
// Hugging Face cache that env leads to.
func Locate(nameOrPath, revision string, env func(string) string) (dir string, tried []string, err error) {
	panic("not yet")
}
