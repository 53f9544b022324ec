// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package control

import "github.com/wcache/wcache/fingerprint"

// Verify asks to compare what is held with its files, and the files with their digests.
type Verify struct {
	// Targets are first digits of keys, absolute directories, or model ids; none: every
	// entry that is ready.
	Targets []string `json:"targets"`
}

// States of a Verified and, but for StateChanged and StateFailed, of its files.
const (
	StateEqual   = "equal"
	StateDiffers = "differs"
	StateChanged = "changed" // the files aren't those that were loaded: they tell nothing of the memory
	StateFailed  = "failed"  // it could not be done
	StateNew     = "new"     // of a file: it had no digest on record, and has one now
	StateDamaged = "damaged" // of a file: a Hugging Face cache names it by another sha256
)

// Verified is what a verification has found of one entry.
type Verified struct {
	Key        string         `json:"key"` // 64 hexadecimal digits
	Model      string         `json:"model"`
	State      string         `json:"state"`
	Message    string         `json:"message,omitempty"` // why it isn't equal, for people
	Hint       string         `json:"hint,omitempty"`    // what to do
	Bytes      int64          `json:"bytes"`             // of memory that there is to compare
	Seconds    float64        `json:"seconds"`
	Difference *Difference    `json:"difference,omitempty"` // of the memory
	Dropped    bool           `json:"dropped"`              // it is served no more, and loaded again when somebody asks
	Files      []VerifiedFile `json:"files"`                // those that were read to their end

	Fingerprint fingerprint.Key `json:"fingerprint"` // the key's fields
}

// Difference is where memory isn't what its files give.
type Difference struct {
	Tensor  string `json:"tensor"`       // the first that differs, by its place in memory
	Offset  int64  `json:"offset"`       // bytes from the tensor's start to the first that differs
	Memory  byte   `json:"memory_value"` // that byte as it is
	File    byte   `json:"file_value"`   // and as the files give it
	Bytes   int64  `json:"bytes"`        // that differ, in all
	Tensors int    `json:"tensors"`      // that have such bytes
}

// VerifiedFile is a file and its digests, each of 64 hexadecimal digits.
type VerifiedFile struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	SHA256   string `json:"sha256"`
	Recorded string `json:"recorded_sha256,omitempty"` // what it was before
	Hub      string `json:"hub_sha256,omitempty"`      // what its name in a Hugging Face cache says
}
