// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/wcache/wcache/weights/hfconfig"
)

// Unreadable is the error for a file that describes the model in a directory and
// can't be read: it isn't JSON, or is over a limit. Asking again gives the same answer
// until the file has changed. As the model is not known then, the directory must not be
// taken for another model's.
type Unreadable struct {
	Path   string // of the file
	Reason string // what is wrong, and what to do
	Err    error  // the cause, such as a [*hfconfig.FormatError]
}

//diag - the reason is explained by itself

func (e *Unreadable) Error() string { return fmt.Sprintf("read model %q: %s", e.Path, e.Reason) }

func (e *Unreadable) Unwrap() error { return e.Err }

func readConfig(dir string) (*hfconfig.Config, error) {
	config, err := hfconfig.Read(dir)
	var format *hfconfig.FormatError
	switch {
	case err == nil:
		return config, nil
	case errors.As(err, &format):
		path := filepath.Join(dir, format.File)
		reason := foreignFile(path)
		if reason == "" {
			reason = format.Reason + "; fetch it again"
		}
		return nil, &Unreadable{Path: path, Reason: reason, Err: err}
	case errors.Is(err, fs.ErrNotExist):
		//diag files
		// The directory has no `config.json`. Fetch the model again, or copy the file from where
		// the weights come from.
		return nil, &Unusable{Path: filepath.Join(dir, configName), Reason: "does not exist; vLLM needs it beside the weights", Err: err}
	}
	var fault *fs.PathError
	if errors.As(err, &fault) {
		err = denied(fault.Path, err)
	}
	return nil, err
}
