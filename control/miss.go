// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package control

import (
	"time"

	"github.com/wcache/wcache/fingerprint"
)

// Reasons why a request for weights was not answered from memory. They are the values of
// the label "reason" in the metrics, and are only ever added to.
const (
	MissNew     = "new"     // no rank of the model was held, or none with these options; loaded
	MissOptions = "options" // the same weights were held with other options; loaded anew
	MissLoading = "loading" // the request waited for another request's load
	MissChanged = "changed" // the files have changed since they were loaded; loaded again
	MissRefused = "refused" // a lasting refusal: the engine gives up and loads by itself
	MissFailed  = "failed"  // a passing failure, such as a lack of memory: the engine may ask again
)

// Reasons lists the reasons of a miss.
func Reasons() []string {
	return []string{MissNew, MissOptions, MissLoading, MissChanged, MissRefused, MissFailed}
}

// Miss is an engine's request that was not answered from memory, as it was when the
// request came.
type Miss struct {
	Time    time.Time `json:"time"`
	PID     int       `json:"pid"`
	Comm    string    `json:"comm"`
	Role    string    `json:"role"` // "target", "draft"
	Reason  string    `json:"reason"`
	Seconds float64   `json:"seconds"` // until it was answered
	// Field is the field of the key that caused a refusal, "" if none is known.
	Field string `json:"field,omitempty"`
	// Sure says why the directory was certain: engine, name, revision, pin, content or only;
	// "" if none was certain.
	Sure    string `json:"sure,omitempty"`
	Message string `json:"message,omitempty"` // why it was refused, or why it was loaded again
	Hint    string `json:"hint,omitempty"`
	// Directories are the known directories that have the checkpoint's headers.
	Directories []string        `json:"directories"`
	Held        *Held           `json:"held,omitempty"` // nil if nothing similar was held
	Fingerprint fingerprint.Key `json:"fingerprint"`
}

// Held is the held entry that was most similar to a missed request.
type Held struct {
	Key         string          `json:"key"`
	Model       string          `json:"model"`
	Fingerprint fingerprint.Key `json:"fingerprint"`
}
